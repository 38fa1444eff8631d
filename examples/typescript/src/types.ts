// Made by make_types.py from `logitport schema`. Change that instead.

/** The specs that a request carries. */
export type Payload = {
  version: 1;
  specs: ReadonlyArray<Spec>;
  generation_only?: boolean;
  continued?: number;
};

/** Output token ``i`` is ``token_ids[i]``; then EOS until the request ends, or free text. */
export type ForcedTokenSequenceSpec = {
  kind: "forced_sequence";
  eos_token_id?: number | null;
} & (
  { token_ids: ReadonlyArray<number>; text?: never } |
  { text: string; token_ids?: never }
);

/** Every output token is one of ``token_ids``. */
export type AllowedTokensSpec = {
  kind: "allowed_tokens";
} & (
  { token_ids: ReadonlyArray<number>; tokens?: never } |
  { tokens: ReadonlyArray<string>; token_ids?: never }
);

/** No output token is one of ``token_ids``. */
export type BannedTokensSpec = {
  kind: "banned_tokens";
} & (
  { token_ids: ReadonlyArray<number>; tokens?: never } |
  { tokens: ReadonlyArray<string>; token_ids?: never }
);

/** The output never contains one of ``sequences``. */
export type BannedSequencesSpec = {
  kind: "banned_sequences";
  sequences: ReadonlyArray<ReadonlyArray<number>>;
};

/** The output, as text, never contains one of ``texts``. */
export type BannedTextSpec = {
  kind: "banned_text";
  texts: ReadonlyArray<string>;
  ignore_case?: boolean;
  whole_words?: boolean;
  ignore_accents?: boolean;
};

/** The output, as text, never has more than ``n`` characters of a class in a row. */
export type MaxRunSpec = {
  kind: "max_run";
  n: number;
  texts?: ReadonlyArray<string>;
};

/** The output has no character of the Unicode scripts ``scripts``. */
export type BannedScriptsSpec = {
  kind: "banned_scripts";
  scripts: ReadonlyArray<string>;
};

/** Every character of the output belongs to one of the Unicode ``scripts``, or is shared. */
export type AllowedScriptsSpec = {
  kind: "allowed_scripts";
  scripts: ReadonlyArray<string>;
};

/** Add ``bias[t]`` to the logit of token ``t``, at every step. */
export type LogitBiasSpec = {
  kind: "logit_bias";
  bias: Readonly<Record<string, number>>;
};

/** Add ``biases[i]`` to the logit of a token that would complete ``sequences[i]``. */
export type SequenceBiasSpec = {
  kind: "sequence_bias";
  biases: ReadonlyArray<number>;
} & (
  { sequences: ReadonlyArray<ReadonlyArray<number>>; texts?: never } |
  { texts: ReadonlyArray<string>; sequences?: never }
);

/** None of ``stop_token_ids`` is chosen until the output has ``n`` tokens. */
export type MinTokensSpec = {
  kind: "min_tokens";
  n: number;
} & (
  { stop_token_ids: ReadonlyArray<number>; stop_tokens?: never } |
  { stop_tokens: ReadonlyArray<string>; stop_token_ids?: never }
);

/** Output token ``after + i`` is ``token_ids[i]``; then EOS until the end, or free text. */
export type ForcedEndSpec = {
  kind: "forced_end";
  after: number;
  eos_token_id?: number | null;
} & (
  { token_ids: ReadonlyArray<number>; text?: never } |
  { text: string; token_ids?: never }
);

/** Where the reply would end, ``token_ids`` come first: a footer, a source, an answer's label. */
export type AtEndSpec = {
  kind: "at_end";
  temperature?: number;
} & (
  { token_ids: ReadonlyArray<number>; text?: never } |
  { text: string; token_ids?: never }
) & (
  { stop_token_ids: ReadonlyArray<number>; stop_tokens?: never } |
  { stop_tokens: ReadonlyArray<string>; stop_token_ids?: never }
);

/** A thinking block holds at most ``budget`` tokens; then the message and the end tag follow. */
export type ThinkingBudgetSpec = {
  kind: "thinking_budget";
  budget: number;
  min_tokens?: number;
  grace?: number;
  newline_token_ids?: ReadonlyArray<number>;
} & (
  { start_token_ids: ReadonlyArray<number>; start_text?: never; tags?: never } |
  { start_text: string; start_token_ids?: never; tags?: never } |
  { tags: "model"; start_token_ids?: never; start_text?: never }
) & (
  { end_token_ids: ReadonlyArray<number>; end_text?: never; tags?: never } |
  { end_text: string; end_token_ids?: never; tags?: never } |
  { tags: "model"; end_token_ids?: never; end_text?: never }
) & (
  { message_token_ids?: ReadonlyArray<number>; message_text?: never } |
  { message_text?: string; message_token_ids?: never }
) & (
  { other_start_token_ids?: ReadonlyArray<ReadonlyArray<number>>; other_start_texts?: never } |
  { other_start_texts?: ReadonlyArray<string>; other_start_token_ids?: never }
) & (
  { other_end_token_ids?: ReadonlyArray<ReadonlyArray<number>>; other_end_texts?: never } |
  { other_end_texts?: ReadonlyArray<string>; other_end_token_ids?: never }
) & (
  { then_token_ids?: ReadonlyArray<number>; then_text?: never } |
  { then_text?: string; then_token_ids?: never }
) & (
  { stop_token_ids?: ReadonlyArray<number>; stop_tokens?: never } |
  { stop_tokens?: ReadonlyArray<string>; stop_token_ids?: never }
);

/** The output is one of ``choices``; then EOS until the request ends, or free text. */
export type ChoiceSpec = {
  kind: "choice";
  eos_token_id?: number | null;
} & (
  { choices: ReadonlyArray<ReadonlyArray<number>>; texts?: never } |
  { texts: ReadonlyArray<string>; choices?: never }
);

/** When the output ends with the trigger, the phrase follows. */
export type TriggerSpec = {
  kind: "trigger";
  times?: number | null;
} & (
  { trigger_token_ids: ReadonlyArray<number>; trigger_text?: never } |
  { trigger_text: string; trigger_token_ids?: never }
) & (
  { token_ids: ReadonlyArray<number>; text?: never } |
  { text: string; token_ids?: never }
);

/** The output goes through phases, each with its own specs. */
export type PhasesSpec = {
  kind: "phases";
  phases: ReadonlyArray<Phase>;
  eos_token_id?: number | null;
  repeat?: boolean;
} & (
  { stop_token_ids?: ReadonlyArray<number>; stop_tokens?: never } |
  { stop_tokens?: ReadonlyArray<string>; stop_token_ids?: never }
);

/** One phase of an output. */
export type Phase = {
  specs?: ReadonlyArray<Spec>;
  ends?: ReadonlyArray<PhaseEnd>;
};

/** An automaton that reads the output, as data. */
export type AutomatonSpec = {
  kind: "automaton";
  states: ReadonlyArray<AutomatonState>;
  token_sets?: ReadonlyArray<ReadonlyArray<number>>;
};

/** One state: the edit of the next token, and what the token leads to. */
export type AutomatonState = {
  force?: number | null;
  allow?: number | null;
  ban?: number | null;
  add?: number | null;
  bias?: number | null;
  edges?: ReadonlyArray<AutomatonEdge>;
  default?: number | null;
  timer?: number | null;
  counts?: boolean;
  timeout?: number | null;
};

/** An edge: a token of ``token_set`` leads to ``state``. */
export type AutomatonEdge = {
  token_set: number;
  state: number;
};

/** No token completes an n-gram that the window already holds. */
export type NoRepeatNgramSpec = {
  kind: "no_repeat_ngram";
  n: number;
  window?: number | null;
  allowed_token_ids?: ReadonlyArray<number>;
  output_only?: boolean;
};

/** A token that would continue a repetition of at least ``allowed_length`` tokens is penalized. */
export type DrySpec = {
  kind: "dry";
  multiplier: number;
  base?: number;
  allowed_length?: number;
  range?: number | null;
  breaker_token_ids?: ReadonlyArray<number>;
};

/** The output does not repeat the same tokens ``times`` times in a row. */
export type NoLoopSpec = {
  kind: "no_loop";
  times: number;
  max_period?: number;
  min_period?: number;
  min_tokens?: number;
  output_only?: boolean;
} & (
  { then_token_ids?: ReadonlyArray<number>; then_text?: never } |
  { then_text?: string; then_token_ids?: never }
) & (
  { start_token_ids?: ReadonlyArray<number>; start_text?: never } |
  { start_text?: string; start_token_ids?: never }
) & (
  { start_token_ids?: ReadonlyArray<number>; tags?: never } |
  { tags?: "model"; start_token_ids?: never }
) & (
  { start_text?: string; tags?: never } |
  { tags?: "model"; start_text?: never }
) & (
  { end_token_ids?: ReadonlyArray<number>; end_text?: never } |
  { end_text?: string; end_token_ids?: never }
) & (
  { end_token_ids?: ReadonlyArray<number>; tags?: never } |
  { tags?: "model"; end_token_ids?: never }
) & (
  { end_text?: string; tags?: never } |
  { tags?: "model"; end_text?: never }
) & (
  { other_start_token_ids?: ReadonlyArray<ReadonlyArray<number>>; other_start_texts?: never } |
  { other_start_texts?: ReadonlyArray<string>; other_start_token_ids?: never }
) & (
  { other_end_token_ids?: ReadonlyArray<ReadonlyArray<number>>; other_end_texts?: never } |
  { other_end_texts?: ReadonlyArray<string>; other_end_token_ids?: never }
);

/** Add ``bias`` to the logits of all tokens that occur in the prompt, at every step. */
export type PromptBiasSpec = {
  kind: "prompt_bias";
  bias: number;
  excluded_token_ids?: ReadonlyArray<number>;
};

/** The output, as text, is what a grammar generates, whole unless ``max_tokens`` cuts it off. */
export type GrammarSpec = {
  kind: "grammar";
  json_schema?: Readonly<Record<string, unknown>> | null;
  regex?: string | null;
  ebnf?: string | null;
  choices?: ReadonlyArray<string> | null;
  structural_tag?: Readonly<Record<string, unknown>> | null;
  whitespace_pattern?: string | null;
};

/** The engine's own sampling parameters; one that is ``None`` is left as it is. */
export type SamplingSpec = {
  kind: "sampling";
  temperature?: number | null;
  top_p?: number | null;
  top_k?: number | null;
  min_p?: number | null;
  presence_penalty?: number | null;
  frequency_penalty?: number | null;
  repetition_penalty?: number | null;
};

/** A processor that the server has installed under ``name``. */
export type PluginSpec = {
  kind: "plugin";
  name: string;
  params?: Readonly<Record<string, unknown>>;
};

/** Samplers, in this order, the same on every engine. */
export type ChainSpec = {
  kind: "chain";
  steps: ReadonlyArray<ChainStep>;
};

/** One step of a ``chain``: exactly one of the fields. */
export type ChainStep = {
  temperature?: number | null;
  top_k?: number | null;
  top_p?: number | null;
  min_p?: number | null;
  top_n_sigma?: number | null;
  top_a?: number | null;
  typical?: number | null;
  epsilon?: number | null;
  eta?: number | null;
  top_h?: number | null;
  p_less?: true | null;
  min_k?: number | null;
  smoothing?: Smoothing | null;
  xtc?: Xtc | null;
};

/** A cubic curve of logits. */
export type Smoothing = {
  factor: number;
  curve?: number;
};

/** Exclude top choices: of the tokens that are likely enough, only the least likely stays. */
export type Xtc = {
  threshold: number;
  probability: number;
};

/** The text is marked, so that a detector with the server's key finds it. */
export type WatermarkSpec = {
  kind: "watermark";
  profile: string;
};

/** What ends a phase, and the phase that follows. */
export type PhaseEnd = {
  n?: number | null;
  text?: string;
  complete?: boolean;
  phase?: number | null;
} & (
  { token_ids?: ReadonlyArray<number>; tag_text?: never } |
  { tag_text?: string; token_ids?: never }
) & (
  { token_ids?: ReadonlyArray<number>; tags?: never } |
  { tags?: "model"; token_ids?: never }
) & (
  { tag_text?: string; tags?: never } |
  { tags?: "model"; tag_text?: never }
);

/** A spec of any kind. */
export type Spec =
  ForcedTokenSequenceSpec |
  AllowedTokensSpec |
  BannedTokensSpec |
  BannedSequencesSpec |
  BannedTextSpec |
  MaxRunSpec |
  BannedScriptsSpec |
  AllowedScriptsSpec |
  LogitBiasSpec |
  SequenceBiasSpec |
  MinTokensSpec |
  ForcedEndSpec |
  AtEndSpec |
  ThinkingBudgetSpec |
  ChoiceSpec |
  TriggerSpec |
  PhasesSpec |
  AutomatonSpec |
  NoRepeatNgramSpec |
  DrySpec |
  NoLoopSpec |
  PromptBiasSpec |
  GrammarSpec |
  SamplingSpec |
  PluginSpec |
  ChainSpec |
  WatermarkSpec;
