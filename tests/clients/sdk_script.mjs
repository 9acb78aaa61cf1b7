// Drives the official TypeScript SDK: one JSON command a line on stdin, one JSON answer a line on stdout.
//
//     node sdk_script.mjs sdk1        (an alias of package.json: sdk0 or sdk1)
//
// The twin of sdk_script.py, which says what commands and answers are.

import { createInterface } from 'node:readline';

const { default: Anthropic } = await import(process.argv[2]);
const { VERSION } = await import(`${process.argv[2]}/version`);

const conversation = [];

async function perform(command) {
  // No retries: a test asks how one answer is understood.
  const client = new Anthropic({ baseURL: command.base_url, apiKey: 'test-key', maxRetries: 0, timeout: 60_000 });
  if (command.op === 'create') return { message: await client.messages.create(command.request) };
  if (command.op === 'count') {
    const { input_tokens } = await client.messages.countTokens(command.request);
    return { input_tokens };
  }
  if (command.op === 'models') {
    const models = [];
    for await (const model of client.models.list(command.request)) models.push(model.id);
    return { models };
  }
  if (command.op === 'turn') return { message: await turn(client, command) };
  const seen = [];
  const stream = client.messages.stream(command.request);
  for await (const event of stream) {
    seen.push(event.type);
    if (seen.length === command.leave_after) {
      stream.abort();
      return { left: true };
    }
  }
  return { message: await stream.finalMessage(), events: seen };
}

async function turn(client, command) {
  if (command.first) conversation.length = 0;
  conversation.push({ role: 'user', content: command.say });
  const request = { ...command.request, messages: conversation };
  const message = command.streaming
    ? await client.messages.stream(request).finalMessage()
    : await client.messages.create(request);
  conversation.push({ role: 'assistant', content: message.content });
  return message;
}

function described(error) {
  const told = { class: error.constructor.name, message: error.message };
  if (error instanceof Anthropic.APIError) {
    told.status = error.status ?? null;
    told.type = error.error?.error?.type ?? null;
    told.message = error.error?.error?.message ?? error.message;
    told.request_id = error.requestID ?? null;
    told.retry_after = error.headers?.get?.('retry-after') ?? null;
  }
  return told;
}

console.log(JSON.stringify({ version: VERSION }));
for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = await perform(JSON.parse(line));
  } catch (error) {
    answer = { error: described(error) };
  }
  console.log(JSON.stringify(answer));
}
