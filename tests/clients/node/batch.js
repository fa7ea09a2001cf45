// Has a file of requests answered with OpenAI's client for Node, and prints what came of it: one line of JSON for
// test_openai_batches.py.
// node batch.js BASE_URL KEY FILE
import fs from "node:fs";
import OpenAI from "openai";

const [baseURL, apiKey, path] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });

async function refusal(asking) {
  try {
    await asking;
    return null;
  } catch (error) {
    const { status, code, param } = error;
    return { error: error.constructor.name, status, code, param };
  }
}

async function idsOf(listing) {
  const ids = [];
  for await (const one of listing) ids.push(one.id);
  return ids;
}

const file = await client.files.create({ file: fs.createReadStream(path), purpose: "batch" });
const asked = { input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h" };
const made = await client.batches.create({ ...asked, metadata: { from: "node" } });
let batch = made;
while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
  await new Promise((resolve) => setTimeout(resolve, 100));
  batch = await client.batches.retrieve(made.id);
}
const output = await (await client.files.content(batch.output_file_id)).text();
const later = await client.batches.create(asked);
const cancelled = await client.batches.cancel(later.id);

console.log(
  JSON.stringify({
    made,
    batch,
    output,
    cancelled: cancelled.cancelling_at !== null,
    batches: await idsOf(client.batches.list({ limit: 1 })),
    files: await idsOf(client.files.list({ limit: 1 })),
    file: await client.files.retrieve(file.id),
    deleted: await client.files.delete(file.id),
    refusals: [
      await refusal(client.files.retrieve(file.id)),
      await refusal(client.batches.retrieve("batch_nobodys")),
      await refusal(client.batches.create({ ...asked, endpoint: "/v1/moderations" })),
    ],
  }),
);
