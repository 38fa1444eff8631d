/** Receipts: whether the specs of a request acted. */

import { KEYWORD, type Engine, type Options, payloadOf, PLACES } from "./request.js";
import type { Spec } from "./types.js";
import { isObject, validate } from "./validate.js";

/** What acted on a request; docs/wire.md has the meaning of each field. */
export interface Receipt {
  kinds: readonly string[];
  digest: string;
  stage: string;
  default?: boolean;
  presets?: readonly string[];
  may_lose?: readonly string[];
  continued?: number;
  mark?: string;
  policy?: string;
  tags?: readonly string[];
}

/** The specs of a request did not act, or nothing in the answer says that they did. */
export class ReceiptError extends Error {
  override name = "ReceiptError";
}

/**
 * Return the receipt of an answer.
 *
 * @param answer what the OpenAI client returns, the first chunk of a stream, or a `Response` of
 *   fetch (`.withResponse()` and `.asResponse()` of the client have one)
 * @param specs the specs that the request was sent with
 * @throws ReceiptError if there is none, it is for other specs, or they did not act
 */
export async function receipt(
  answer: unknown,
  specs: Spec | readonly Spec[],
  options: Options & { engine?: Engine } = {},
): Promise<Receipt> {
  const found = find(answer);
  if (found === undefined) {
    const { engine = "vllm", carrier = "field" } = options;
    const schema = `response_format.json_schema.schema.${KEYWORD}`;
    const field = carrier === "schema" ? schema : `${PLACES[engine]}.logitport`;
    throw new ReceiptError(
      `The answer has no receipt: \`${field}\` was lost on the way, or the server has no ` +
        "logitport, or no middleware. The carrier `schema` passes gateways that drop fields",
    );
  }
  const digest = await digestOf(payloadOf(specs, options));
  if (found.digest !== digest) {
    throw new ReceiptError(`The receipt is for other specs: ${found.digest}, and not ${digest}`);
  }
  if (found.kinds.length === 0) {
    throw new ReceiptError(`The specs reached the server, and do not act at stage ${found.stage}`);
  }
  return found;
}

function find(answer: unknown): Receipt | undefined {
  const first: unknown = Array.isArray(answer) ? answer[0] : answer;
  if (!isObject(first)) return undefined;
  let found = first["logitport"];
  const { headers } = first as { headers?: unknown };
  if (found === undefined && headers instanceof Headers) {
    const text = headers.get(KEYWORD) ?? headers.get(`llm_provider-${KEYWORD}`);
    found = text === null ? undefined : JSON.parse(text);
  }
  if (found === undefined) return undefined;
  if (isObject(found) && Array.isArray(found["kinds"]) && typeof found["digest"] === "string") {
    return found as unknown as Receipt;
  }
  throw new ReceiptError(`The receipt cannot be read: ${JSON.stringify(found)}`);
}

/** Return the first 32 digits of the SHA-256 of a payload's canonical text: docs/wire.md. */
export async function digestOf(payload: unknown): Promise<string> {
  const read = validate(payload);
  const content = Array.isArray(read) ? { version: 1, specs: read } : read;
  const { continued, ...fields } = { generation_only: true, ...content } as { continued?: number };
  const text = canonical(continued ? { ...fields, continued } : fields);
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  const digits = [...new Uint8Array(hash)].map((byte) => byte.toString(16).padStart(2, "0"));
  return digits.join("").slice(0, 32);
}

function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (isObject(value)) {
    const entries = Object.entries(value).sort(([a], [b]) => compare(a, b));
    return `{${entries.map(([name, each]) => `${JSON.stringify(name)}:${canonical(each)}`).join(",")}}`;
  }
  const isSmall = typeof value === "number" && value !== 0 && Math.abs(value) < 1e-5;
  return isSmall ? value.toExponential() : JSON.stringify(value);
}

/** Compare texts by code points, where JavaScript compares UTF-16's units. */
function compare(a: string, b: string): number {
  const [left, right] = [[...a], [...b]];
  const i = left.findIndex((each, k) => each !== right[k]);
  if (i < 0) return left.length - right.length;
  return (left[i]?.codePointAt(0) ?? 0) - (right[i]?.codePointAt(0) ?? -1);
}
