/** The fields of a request that carry specs: what `extra_body` and `add_specs` make in Python. */

import type { Payload, Spec } from "./types.js";
import { type Fields, isObject, SpecError, validate } from "./validate.js";

/** The engine behind the server. Dynamo takes specs in `nvext.annotations`: docs/dynamo.md. */
export type Engine = "vllm" | "sglang";
export type Stage = "agg" | "prefill" | "decode" | "encode";

export interface Options {
  /** The engine's own `field`, or the JSON `schema` of the answer, which passes gateways. */
  carrier?: "field" | "schema";
  /** The stage of the server that gets the request; `agg` if unset. */
  stage?: Stage;
  /** False: specs act where the first token is chosen, too; true if unset. */
  generationOnly?: boolean;
  /** The number of the prompt's last tokens that count as output; 0 if unset. */
  continued?: number;
}

const KEY = "logitport";
export const KEYWORD = `x-${KEY}`;
export const PLACES = { vllm: "vllm_xargs", sglang: "custom_params" } as const;

/** SGLang expects a pickle. This one has no code, but the name of logitport's function. */
const PROCESSOR = named("clogitport.adapters.sglang.processor\nprocessor\n.");

/** The server answers `{"logitport": "missing"}` if it does not know the keyword. */
const MISSING = {
  type: "object",
  properties: { [KEY]: { type: "string", enum: ["missing"] } },
  required: [KEY],
  additionalProperties: false,
};

const NATIVE = ["grammar", "sampling"];

/** Return what the payload says, checked. */
export function payloadOf(specs: Spec | readonly Spec[], options: Options = {}): Payload {
  const { generationOnly = true, continued = 0 } = options;
  const list = Array.isArray(specs) ? (specs as readonly Spec[]) : [specs as Spec];
  const payload = { version: 1, specs: list, generation_only: generationOnly } as const;
  validate(payload);
  for (const [i, { kind }] of list.entries()) {
    if (!NATIVE.includes(kind)) continue;
    const instead = kind === "grammar" ? "`response_format`" : "`temperature` and the like";
    throw new SpecError(`Use the engine's own fields in place of ${kind}: ${instead}`, `$.specs[${i}]`);
  }
  return continued === 0 ? payload : { ...payload, continued };
}

/**
 * Make the fields with which an OpenAI client sends specs, to spread into the body:
 *
 *     client.chat.completions.create({ model, messages, ...extraBody("vllm", spec) })
 *
 * @throws SpecError for specs that the schema of the wire refuses
 */
export function extraBody(
  engine: Engine,
  specs: Spec | readonly Spec[],
  options: Options = {},
): Fields {
  const place = placeOf(engine);
  if ((specs as readonly Spec[]).length === 0) return {};
  const text = JSON.stringify(payloadOf(specs, options));
  const { carrier = "field", stage = "agg", generationOnly = true } = options;
  if (generationOnly && (stage === "prefill" || stage === "encode")) return {};
  if (carrier === "schema") {
    const json_schema = { name: KEYWORD, schema: { ...MISSING, [KEYWORD]: text } };
    return { response_format: { type: "json_schema", json_schema } };
  }
  const body = { [place]: { [KEY]: text } };
  return engine === "vllm" ? body : { ...body, custom_logit_processor: PROCESSOR };
}

/**
 * Add specs to the body of a chat or completion, after those that it has; the body stays as it is.
 *
 * @throws SpecError as `extraBody`; if the body has specs twice, or another value for a field
 */
export function addSpecs(
  body: Fields,
  engine: Engine,
  specs: Spec | readonly Spec[],
  options: Pick<Options, "carrier"> = {},
): Fields {
  const fields = structuredClone(body);
  const sent = [take(fields[placeOf(engine)], KEY), takeFromSchema(fields)];
  const given = sent.filter((each) => each !== undefined);
  if (given.length > 1) throw new SpecError("Expected specs once", "$");
  const own = given.length === 0 ? [] : validate(given[0]);
  const payload: Payload = Array.isArray(own) ? { version: 1, specs: own } : (own as Payload);
  const every = [...payload.specs, ...(Array.isArray(specs) ? specs : [specs as Spec])];
  const { generation_only: generationOnly = true, continued = 0 } = payload;
  const added = extraBody(engine, every, { ...options, generationOnly, continued });
  const schema = schemaOf(fields);
  if (options.carrier === "schema" && schema !== undefined && every.length > 0) {
    schema[KEYWORD] = (schemaOf(added) as Fields)[KEYWORD];
  } else {
    merge(fields, added, "$");
  }
  return fields;
}

function placeOf(engine: Engine): string {
  if (Object.hasOwn(PLACES, engine)) return PLACES[engine];
  throw new SpecError(`Expected the engine vllm or sglang, got ${engine}`, "$");
}

function take(container: unknown, name: string): unknown {
  if (!isObject(container)) return undefined;
  const value = container[name];
  delete container[name];
  return value;
}

function schemaOf(fields: Fields): Fields | undefined {
  const format = fields["response_format"];
  const named = isObject(format) ? format["json_schema"] : undefined;
  const schema = isObject(named) ? named["schema"] : undefined;
  return isObject(schema) ? schema : undefined;
}

/** Take the payload from the answer's schema, and the format if it has nothing else. */
function takeFromSchema(fields: Fields): unknown {
  const schema = schemaOf(fields);
  const payload = take(schema, KEYWORD);
  const isOurs = JSON.stringify(schema) === JSON.stringify(MISSING);
  if (payload !== undefined && isOurs) delete fields["response_format"];
  return payload;
}

function merge(fields: Fields, added: Fields, path: string): void {
  for (const [name, value] of Object.entries(added)) {
    const own = fields[name];
    if (isObject(own) && isObject(value)) merge(own, value, `${path}.${name}`);
    else if (own === undefined || own === null || own === value) fields[name] = value;
    else throw new SpecError("The request has another value than the specs need", `${path}.${name}`);
  }
}

function named(text: string): string {
  const digits = [...text].map((each) => each.charCodeAt(0).toString(16).padStart(2, "0"));
  return `{"callable": "${digits.join("")}"}`;
}
