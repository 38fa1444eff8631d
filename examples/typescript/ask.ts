/** Ask a server, whole and streamed: `node dist/ask.js http://127.0.0.1:8000/v1 MODEL`. */

import OpenAI from "openai";
import { addSpecs, extraBody, receipt, type Spec } from "./src/index.js";

const [baseURL = "http://127.0.0.1:8000/v1", model = "SmolLM2-135M-Instruct"] = process.argv.slice(2);
const { completions } = new OpenAI({ baseURL, apiKey: "-" }).chat;
const messages = [{ role: "user" as const, content: "Is the sky blue?" }];
const specs: Spec = { kind: "choice", texts: ["yes", "no"] };

const chat = await completions.create({ model, messages, ...extraBody("vllm", specs) });
console.log(chat.choices[0]?.message.content, (await receipt(chat, specs)).kinds);

const stream = await completions.create({
  ...{ model, messages, stream: true },
  ...extraBody("vllm", specs, { carrier: "schema" }),
});
let [text, kinds]: [string, readonly string[]] = ["", []];
for await (const chunk of stream) {
  if (kinds.length === 0) ({ kinds } = await receipt(chunk, specs));
  text += chunk.choices[0]?.delta.content ?? "";
}
console.log(text, kinds);

const body = { model, messages, max_tokens: 20, ...extraBody("vllm", specs) };
const banned: Spec = { kind: "banned_text", texts: ["yes"] };
const both = addSpecs(body, "vllm", banned) as unknown as typeof body;
const { data, response } = await completions.create(both).withResponse();
console.log(data.choices[0]?.message.content, (await receipt(response, [specs, banned])).kinds);

const wrong = { vllm_xargs: { logitport: '[{"kind": "chioce"}]' } };
const refusal = await completions.create({ model, messages, ...wrong }).catch((error) => error);
console.log(refusal.status, refusal.message);
