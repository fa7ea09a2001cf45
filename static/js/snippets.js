// The calls that do from a program what the playground just did: real address, model and message.

const EXAMPLE_MESSAGE = "Where is my order?";

function curl({ baseUrl, model, message }) {
  const body = `{
    "model": ${JSON.stringify(model)},
    "messages": [{"role": "user", "content": ${JSON.stringify(message)}}]
  }`;
  return `curl ${baseUrl}/chat/completions \\
  -H "Authorization: Bearer $STEERGUARD_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '${body.replaceAll("'", `'\\''`)}'`;
}

// A JSON string is also a Python string.
function python({ baseUrl, model, message }) {
  return `import os

from openai import OpenAI

client = OpenAI(
    base_url=${JSON.stringify(baseUrl)},
    api_key=os.environ["STEERGUARD_API_KEY"],
)
stream = client.chat.completions.create(
    model=${JSON.stringify(model)},
    messages=[{"role": "user", "content": ${JSON.stringify(message)}}],
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)`;
}

// {language: code} for a persona's model name and the message in the prompt box.
export function snippets({ model, message }) {
  const call = { baseUrl: `${location.origin}/v1`, model, message: message.trim() || EXAMPLE_MESSAGE };
  return { curl: curl(call), python: python(call) };
}
