// SPDX-License-Identifier: MIT
// The npm package of the OpenAI API as a client; the protocol is that of asking.py. Its
// argument is the path of the package.

import { createRequire } from "node:module";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const found = createRequire(pathToFileURL(process.argv[2] + "/x.js")).resolve("openai");
const OpenAI = createRequire(pathToFileURL(found))(found);

const clientOf = (ask) => new OpenAI({
    baseURL: ask.url + "/v1", apiKey: "none", maxRetries: 0, timeout: 120000,
    defaultHeaders: ask.headers,
});

const questionOf = (ask, more) => ({
    model: ask.model, messages: ask.messages, max_tokens: ask.limit, temperature: 0, ...more,
});

const create = (ask, more) => clientOf(ask).chat.completions.create(questionOf(ask, more));

async function failed(work) {
    try {
        return await work();
    } catch (error) {
        if (!(error instanceof OpenAI.APIError))
            throw error;
        return { class: error.constructor.name, status: error.status, body: error.error ?? null };
    }
}

async function all(chunks) {
    const out = [];
    for await (const chunk of chunks)
        out.push(chunk);
    return out;
}

const cases = {
    plain: (ask) => create(ask),

    stream: async (ask, more) => all(await create(
        ask, { stream: true, stream_options: { include_usage: true }, ...more })),

    models: async (ask) => all(clientOf(ask).models.list()),

    // Both answers of a round trip, or one where the engine has called nothing.
    tools: async (ask) => {
        const first = await create(ask, { tools: ask.tools });
        const message = first.choices[0].message;
        if (!message.tool_calls?.length)
            return [first];
        const results = message.tool_calls.map((call) => (
            { role: "tool", tool_call_id: call.id, content: ask.result }));
        return [first, await create(
            { ...ask, messages: [...ask.messages, message, ...results] }, { tools: ask.tools })];
    },

    tools_stream: (ask) => cases.stream(ask, { tools: ask.tools }),

    cancel: async (ask) => {
        const chunks = await create(ask, { stream: true, ignore_eos: true });
        for await (const chunk of chunks) {
            if (chunk.choices[0]?.delta.content) {
                const left = Number(process.hrtime.bigint()) / 1e9;
                chunks.controller.abort();
                return { left };
            }
        }
        return null;
    },

    request_id: async (ask) => (await create(ask))._request_id,
    not_found: (ask) => failed(() => clientOf(ask).models.retrieve("no-such-model")),
    bad: (ask) => failed(() => create(ask, { max_tokens: "four" })),
    down: (ask) => failed(() => create(ask)),
};

console.log(JSON.stringify({ ready: true }));
for await (const line of readline.createInterface({ input: process.stdin })) {
    const ask = JSON.parse(line);
    console.log(JSON.stringify(await cases[ask.do](ask) ?? null));
}
