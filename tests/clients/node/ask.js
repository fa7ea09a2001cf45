// Asks the gateway with OpenAI's client for Node, and prints what came of it: one line of JSON for test_openai_node.py.
// node ask.js BASE_URL KEY [{"do": "whole" | "stream" | "models", "model": "…", …}, …]     All are asked at once.
import OpenAI from "openai";

const [baseURL, apiKey, tasks] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "Hello" }];

async function whole({ model, more }) {
  const answer = await client.chat.completions.create({ model, messages, ...more });
  const { message, finish_reason } = answer.choices[0];
  return { model: answer.model, text: message.content, tools: message.tool_calls, finish_reason, usage: answer.usage };
}

async function stream({ model, more }) {
  const told = { model: new Set(), text: "", usage: null };
  try {
    for await (const chunk of await client.chat.completions.create({ model, messages, stream: true, ...more })) {
      told.model.add(chunk.model);
      told.text += chunk.choices[0]?.delta?.content ?? "";
      told.usage = chunk.usage ?? told.usage;
    }
  } catch (error) {
    error.told = told.text;
    throw error;
  }
  return { ...told, model: [...told.model].join() };
}

async function models() {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  return { names };
}

const kinds = { whole, stream, models };

async function run(task) {
  try {
    return await kinds[task.do](task);
  } catch (error) {
    const { status, code, param, message, told, requestID } = error;
    return { error: error.constructor.name, status, code, param, message, told, requestID };
  }
}

console.log(JSON.stringify(await Promise.all(JSON.parse(tasks).map(run))));
