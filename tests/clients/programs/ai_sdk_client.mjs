// Vercel's AI SDK: texts, streams, objects, tools in a loop of two steps. Prints what it read as one line of JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateObject, generateText, isStepCount, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const served = createOpenAICompatible({
  name: "adaptspec",
  baseURL: process.env.ADAPTSPEC_URL,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const asked = { model: served("bundled"), temperature: 0, maxRetries: 0 };
const story = { ...asked, prompt: "Tell me a story.", maxOutputTokens: 24 };
const schema = z.object({ kind: z.enum(["fox", "fog"]) });

const whole = await generateText(story);
const stream = streamText(story);
let streamed = "";
for await (const part of stream.textStream) {
  streamed += part;
}

const shaped = await generateObject({ ...asked, schema, prompt: "A fox.", maxOutputTokens: 60 });
const growing = streamObject({ ...asked, schema, prompt: "A fox.", maxOutputTokens: 60 });
for await (const part of growing.partialObjectStream) {
  void part;
}
const output = await generateText({
  ...asked,
  prompt: "A fox.",
  maxOutputTokens: 60,
  output: Output.object({ schema }),
});

const seen = [];
const called = await generateText({
  ...asked,
  prompt: "What do you see?",
  tools: { see: tool({ description: "Look.", inputSchema: schema, execute: ({ kind }) => (seen.push(kind), kind) }) },
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? { type: "tool", toolName: "see" } : "none" }),
  stopWhen: isStepCount(2),
});

console.log(
  JSON.stringify({
    whole: whole.text,
    usage: whole.usage.outputTokens,
    reason: whole.finishReason,
    warnings: whole.warnings ?? [],
    streamed,
    streamedUsage: (await stream.usage).outputTokens,
    shaped: shaped.object,
    grown: await growing.object,
    output: output.output,
    seen,
    steps: called.steps.length,
    text: called.text,
  }),
);
