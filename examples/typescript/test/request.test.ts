/** Bodies and receipts. tests/adapters/test_typescript.py compares the bodies with Python's. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { addSpecs, extraBody, receipt, ReceiptError, type Spec, SpecError } from "../src/index.js";

const CHOICE: Spec = { kind: "choice", texts: ["yes", "no"] };
const BANNED: Spec = { kind: "banned_text", texts: ["Acme"] };
const RECEIPT = { kinds: ["choice"], digest: "a90ecaf488ded641804e64763ee238c7", stage: "agg" };

// What tsc has to refuse: each of these lines is an error if it is none.
// @ts-expect-error: a misspelt kind
export const misspelt: Spec = { kind: "chioce", texts: ["yes"] };
// @ts-expect-error: a text, or token ids
export const twice: Spec = { kind: "forced_sequence", text: "yes", token_ids: [5] };
// @ts-expect-error: neither
export const neither: Spec = { kind: "forced_sequence" };
// @ts-expect-error: a field of another kind
export const other: Spec = { kind: "choice", texts: ["yes"], budget: 5 };

test("a text in the engine's field", () => {
  const text = '{"version":1,"specs":[{"kind":"choice","texts":["yes","no"]}],"generation_only":true}';
  assert.deepEqual(extraBody("vllm", CHOICE), { vllm_xargs: { logitport: text } });
});

test("bodies that are refused", () => {
  const format = { response_format: { type: "json_object" } };
  const both = { ...extraBody("vllm", BANNED), ...extraBody("vllm", BANNED, { carrier: "schema" }) };
  const cases: [string, () => unknown][] = [
    ["$.specs[1].kind", () => extraBody("vllm", [CHOICE, { kind: "x" } as unknown as Spec])],
    ["$.specs[0]", () => extraBody("vllm", { kind: "grammar", regex: "a" })],
    ["$.specs", () => extraBody("vllm", Array<Spec>(17).fill(CHOICE))],
    ["$", () => extraBody("dynamo" as "vllm", CHOICE)],
    ["$", () => addSpecs(both, "vllm", CHOICE)],
    ["$.response_format.type", () => addSpecs(format, "vllm", CHOICE, { carrier: "schema" })],
    ["$.custom_logit_processor", () => addSpecs({ custom_logit_processor: "x" }, "sglang", CHOICE)],
    ["$[0].kind", () => addSpecs({ vllm_xargs: { logitport: '[{"kind":"x"}]' } }, "vllm", CHOICE)],
  ];
  for (const [path, make] of cases) {
    assert.throws(make, (error) => error instanceof SpecError && error.path === path, path);
  }
});

test("receipts", async () => {
  const headers = new Headers({ "x-logitport": JSON.stringify(RECEIPT) });
  const renamed = new Headers({ "llm_provider-x-logitport": JSON.stringify(RECEIPT) });
  for (const answer of [{ logitport: RECEIPT }, [{ logitport: RECEIPT }], { headers }, { headers: renamed }]) {
    assert.deepEqual(await receipt(answer, CHOICE), RECEIPT);
  }
  const wrong: [RegExp, unknown][] = [
    [/`vllm_xargs.logitport` was lost/, { choices: [] }],
    [/is for other specs/, { logitport: { ...RECEIPT, digest: "0" } }],
    [/do not act at stage prefill/, { logitport: { ...RECEIPT, kinds: [], stage: "prefill" } }],
    [/cannot be read/, { logitport: 5 }],
  ];
  for (const [message, answer] of wrong) {
    await assert.rejects(receipt(answer, CHOICE), (error) => {
      return error instanceof ReceiptError && message.test(error.message);
    });
  }
});
