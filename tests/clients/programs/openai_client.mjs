// OpenAI's client for Node: chat, streams, tools, schemas, responses. Prints what it read as one line of JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.ADAPTSPEC_URL, apiKey: "unused", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Tell me a story." }];
const asked = { model, messages, max_tokens: 24, temperature: 0 };
const schema = {
  type: "object",
  properties: { kind: { enum: ["fox", "fog"] } },
  required: ["kind"],
  additionalProperties: false,
};

const whole = await client.chat.completions.create(asked);
const stream = await client.chat.completions.create({
  ...asked,
  stream: true,
  stream_options: { include_usage: true },
});
let streamed = "";
let usage = null;
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}

const runner = client.chat.completions.stream({
  model,
  messages,
  temperature: 0,
  tools: [{ type: "function", function: { name: "see", parameters: schema } }],
  tool_choice: { type: "function", function: { name: "see" } },
});
const call = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0].function;

const shaped = await client.chat.completions.create({
  ...asked,
  max_tokens: 60,
  response_format: { type: "json_schema", json_schema: { name: "x", schema, strict: true } },
});
const response = await client.responses.create({ model, input: "Tell me a story.", max_output_tokens: 24, temperature: 0 });
const events = client.responses.stream({ model, input: "Tell me a story.", max_output_tokens: 24, temperature: 0 });
const final = await events.finalResponse();
let refused = null;
try {
  await client.chat.completions.create({ ...asked, n: 1000 });
} catch (error) {
  refused = { status: error.status, param: error.param };
}

console.log(
  JSON.stringify({
    whole: whole.choices[0].message.content,
    usage: whole.usage,
    streamed,
    streamedUsage: usage,
    call: { name: call.name, arguments: JSON.parse(call.arguments) },
    shaped: JSON.parse(shaped.choices[0].message.content),
    response: response.output_text,
    final: final.output_text,
    refused,
  }),
);
