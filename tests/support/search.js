// Prints the address of the first that the site's own search finds, for each query.
const fs = require("fs");
const [worker, index, ...queries] = process.argv.slice(2);
let listener, reply;
globalThis.self = globalThis;
globalThis.addEventListener = (_, each) => { listener = each; };
globalThis.postMessage = (message) => { reply = message; };
(0, eval)(fs.readFileSync(worker, "utf-8"));
(async () => {
  const setup = JSON.parse(fs.readFileSync(index));
  await listener({ data: { type: 0, data: { ...setup, options: {} } } });
  for (const query of queries) {
    await listener({ data: { type: 2, data: query } });
    console.log(reply.data.items[0]?.[0].location ?? "nothing");
  }
})();
