/** The wire's test vectors, and the schema in ajv. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Ajv2020 } from "ajv/dist/2020.js";
import { schema, SpecError, validate } from "../src/index.js";
import { digestOf } from "../src/receipt.js";

type Vector = {
  payload: unknown;
  text: string;
  path?: string;
  digest?: string;
  vocab_size?: number;
};

const GOLDEN = new URL("../../../../tests/golden/", import.meta.url);
const vectors = JSON.parse(readFileSync(new URL("vectors.json", GOLDEN), "utf8")) as Record<
  "payloads" | "refused" | "texts" | "edits" | "text_edits" | "conflicts",
  Vector[]
>;
const ajv = new Ajv2020({ strict: true }).compile(schema);

function pathOf(payload: unknown): string | undefined {
  try {
    validate(payload);
    return undefined;
  } catch (error) {
    if (error instanceof SpecError) return error.path;
    throw error;
  }
}

const lists = ["edits", "text_edits", "conflicts", "texts"] as const;
test("what is right passes", () => {
  for (const { payload } of lists.flatMap((name) => vectors[name].filter((each) => !each.path))) {
    assert.equal(pathOf(payload), undefined, JSON.stringify(payload));
    assert.ok(ajv(payload), JSON.stringify(ajv.errors));
  }
});

test("digests", async () => {
  const right = vectors.payloads.filter(({ digest }) => digest !== undefined);
  for (const { text, digest } of right) assert.equal(await digestOf(text), digest, text);
  assert.ok(right.length > 10);
});

for (const name of ["payloads", "refused", "texts"] as const) {
  test(`what is wrong has the path: ${name}`, (context) => {
    const wrong = vectors[name].filter(({ path, vocab_size }) => path && vocab_size === undefined);
    const found = wrong.map(({ payload, text }) => pathOf(payload ?? text));
    const pairs = wrong.map((vector, i) => [found[i], vector.path, vector]);
    const refused = pairs.filter(([path]) => path !== undefined);
    for (const [path, right, vector] of refused) assert.equal(path, right, JSON.stringify(vector));
    // The rest is refused by a server: a schema has no words for it, or 1.0 is 1 in JavaScript.
    context.diagnostic(`${refused.length} of ${wrong.length} are refused here`);
    assert.ok(refused.length > 0.6 * wrong.length);
  });
}

test("ajv and validate agree", () => {
  const objects = [...vectors.refused, ...vectors.texts].map(({ payload }) => payload);
  for (const each of objects) assert.equal(ajv(each), pathOf(each) === undefined, JSON.stringify(each));
});

test("a misspelt kind is one error", () => {
  ajv([{ kind: "chioce", texts: ["yes"] }]);
  const found = ajv.errors?.filter(({ keyword }) => keyword !== "if") ?? [];
  assert.deepEqual(found.map(({ instancePath }) => instancePath), ["/0/kind"]);
});
