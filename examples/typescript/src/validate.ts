/** Checks payloads by the JSON Schema of the wire. A server checks more: limits in all, conflicts. */

import { schema } from "./schema.js";
import type { Payload, Spec } from "./types.js";

/** What is wrong with a payload or a request, and where. */
export class SpecError extends Error {
  override name = "SpecError";

  constructor(
    readonly problem: string,
    /** `$.specs[0].token_ids[1]`: the path of what is wrong. */
    readonly path: string,
  ) {
    super(`${path}: ${problem}`);
  }
}

/**
 * Return a payload, or its list of specs, if the JSON Schema admits it.
 *
 * @param payload an object, a list, or the JSON text of either
 * @throws SpecError with the path of the first problem
 */
export function validate(payload: unknown): Payload | readonly Spec[] {
  let value = payload;
  if (typeof payload === "string") {
    try {
      value = JSON.parse(payload);
    } catch (error) {
      throw new SpecError(`The payload is not valid JSON: ${(error as Error).message}`, "$");
    }
  }
  const version = isObject(value) ? value["version"] : 1;
  if (typeof version === "number" && Number.isInteger(version) && version > 1) {
    throw new SpecError(`Version ${version} is newer than 1, the newest that is known`, "$.version");
  }
  for (const error of problems(schema as Rule, value, "$")) throw error;
  return value as Payload | readonly Spec[];
}

type Rule = boolean | Fields;
export type Fields = Record<string, unknown>;
type Problems = Generator<SpecError, void>;

export function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function* problems(rule: Rule, value: unknown, path: string): Problems {
  if (typeof rule === "boolean") return;
  for (const [name, argument] of Object.entries(rule)) {
    const check = KEYWORDS[name];
    if (check === undefined) throw new TypeError(`The schema has the unknown keyword ${name}`);
    if (check !== null) yield* check(argument as never, value, path, rule);
  }
}

const holds = (rule: Rule, value: unknown) => problems(rule, value, "").next().done === true;

const TYPES: Record<string, (value: unknown) => boolean> = {
  array: Array.isArray,
  boolean: (value) => typeof value === "boolean",
  integer: Number.isInteger,
  null: (value) => value === null,
  number: Number.isFinite,
  object: isObject,
  string: (value) => typeof value === "string" && value.isWellFormed(),
};

/** Checks a value by one keyword. */
type Check = (rule: never, value: unknown, path: string, around: Fields) => Problems;

function bound<Value>(
  applies: (value: unknown) => value is Value,
  fits: (value: Value, limit: number) => boolean,
  what: string,
): Check {
  return function* (limit: number, value, path) {
    if (applies(value) && !fits(value, limit)) {
      yield new SpecError(`Expected ${what} ${limit}`, path);
    }
  };
}

const isNumber = (value: unknown): value is number => typeof value === "number";
const isText = (value: unknown): value is string => typeof value === "string";
const isList = (value: unknown): value is unknown[] => Array.isArray(value);

const KEYWORDS: Record<string, Check | null> = {
  ...{ $schema: null, $id: null, $defs: null, default: null, then: null, else: null },
  *$ref(ref: string, value, path) {
    const definitions = schema.$defs as Record<string, Rule>;
    yield* problems(definitions[ref.replace("#/$defs/", "")] as Rule, value, path);
  },
  *if(rule: Rule, value, path, around) {
    const next = around[holds(rule, value) ? "then" : "else"];
    if (next !== undefined) yield* problems(next as Rule, value, path);
  },
  *allOf(rules: Rule[], value, path) {
    for (const rule of rules) yield* problems(rule, value, path);
  },
  *anyOf(rules: Rule[], value, path) {
    if (rules.some((rule) => holds(rule, value))) return;
    const likely = rules.find((rule) => holds({ type: (rule as Fields)["type"] }, value));
    yield* problems(likely ?? (rules[0] as Rule), value, path);
  },
  *oneOf(rules: Fields[], value, path) {
    const given = rules.filter((rule) => holds(rule, value));
    if (given.length === 1) return;
    const names = rules.map((rule) => rule["required"]).join(", ");
    const where = given.length === 0 ? path : `${path}.${given.at(-1)?.["required"]}`;
    yield new SpecError(`Expected exactly one of ${names}`, where);
  },
  *not(rule: Fields, value, path) {
    if (!holds(rule, value)) return;
    const names = (rule["allOf"] as Fields[]).map((each) => each["required"]);
    yield new SpecError(`Expected at most one of ${names.join(", ")}`, `${path}.${names.at(-1)}`);
  },
  *type(name: string, value, path) {
    if (!TYPES[name]?.(value)) yield new SpecError(`Expected ${name}, got ${shown(value)}`, path);
  },
  *const(expected: unknown, value, path) {
    if (value !== expected) yield new SpecError(`Expected ${expected}, got ${shown(value)}`, path);
  },
  *enum(values: unknown[], value, path) {
    if (values.includes(value)) return;
    yield new SpecError(`Expected one of ${values.join(", ")}, got ${shown(value)}`, path);
  },
  minimum: bound(isNumber, (value, limit) => value >= limit, "a number >="),
  maximum: bound(isNumber, (value, limit) => value <= limit, "a number <="),
  exclusiveMinimum: bound(isNumber, (value, limit) => value > limit, "a number >"),
  minLength: bound(isText, (value, limit) => [...value].length >= limit, "a length >="),
  maxLength: bound(isText, (value, limit) => [...value].length <= limit, "a length <="),
  minItems: bound(isList, (value, limit) => value.length >= limit, "a length >="),
  maxItems: bound(isList, (value, limit) => value.length <= limit, "a length <="),
  minProperties: bound(isObject, (value, limit) => Object.keys(value).length >= limit, "entries >="),
  maxProperties: bound(isObject, (value, limit) => Object.keys(value).length <= limit, "entries <="),
  *pattern(pattern: string, value, path) {
    if (typeof value === "string" && !new RegExp(pattern, "u").test(value)) {
      yield new SpecError(`Expected a text that matches ${pattern}, got ${shown(value)}`, path);
    }
  },
  *items(rule: Rule, value, path) {
    if (!Array.isArray(value)) return;
    for (const [i, each] of value.entries()) yield* problems(rule, each, `${path}[${i}]`);
  },
  *required(names: string[], value, path) {
    const missing = isObject(value) ? names.find((name) => !Object.hasOwn(value, name)) : undefined;
    if (missing !== undefined) yield new SpecError(`The field ${missing} is missing`, path);
  },
  *properties(rules: Record<string, Rule>, value, path) {
    if (!isObject(value)) return;
    for (const [name, rule] of Object.entries(rules)) {
      if (Object.hasOwn(value, name)) yield* problems(rule, value[name], `${path}.${name}`);
    }
  },
  *propertyNames(rule: Rule, value, path) {
    for (const name of isObject(value) ? Object.keys(value) : []) {
      yield* problems(rule, name, `${path}[${name}]`);
    }
  },
  *additionalProperties(rule: Rule, value, path, around) {
    if (!isObject(value)) return;
    const known = (around["properties"] ?? {}) as Fields;
    for (const name of Object.keys(value).filter((each) => !Object.hasOwn(known, each))) {
      if (rule === false) {
        const names = Object.keys(known).join(", ");
        yield new SpecError(`There is no field ${shown(name)}; there are ${names}`, path);
      } else {
        yield* problems(rule, value[name], `${path}[${name}]`);
      }
    }
  },
};

function shown(value: unknown): string {
  return (JSON.stringify(value) ?? "nothing").slice(0, 80);
}
