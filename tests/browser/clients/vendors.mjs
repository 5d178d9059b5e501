/** Speech by the vendors' own SDKs in a page of another origin than the node's: bytes of sound, and what came beside it. */
import Cartesia from "@cartesia/cartesia-js";
import { DeepgramClient } from "@deepgram/sdk";
// Its main module starts servers of Node's. This is the client that it exports, without them.
import { ElevenLabsClient } from "@elevenlabs/elevenlabs-js/Client.js";

const RAW = { container: "raw", encoding: "pcm_s16le", sample_rate: 24_000 };
const VOICE = { mode: "id", id: "alloy" };

async function sizeOf(stream) {
  let size = 0;
  for await (const piece of stream) size += piece.length;
  return size;
}

/** What a promise fails with: a status, or why there is none. */
const refusal = (promise) => promise.then(() => "taken", (error) => error.statusCode ?? error.status ?? "no status");

const CLIENTS = {
  cartesia: (baseURL, apiKey) => new Cartesia({ baseURL, apiKey, maxRetries: 0 }),
  cartesiaToken: (baseURL, token) => new Cartesia({ baseURL, token, maxRetries: 0 }),
  deepgram: (url, apiKey) =>
    new DeepgramClient({ apiKey, maxRetries: 0, environment: { base: url, production: url.replace("http", "ws") } }),
  elevenlabs: (baseUrl, apiKey) => new ElevenLabsClient({ apiKey, baseUrl, maxRetries: 0 }),
};

const SPEAK = {
  cartesiaBytes: (client) =>
    client.tts
      .generate({ model_id: "sonic-3", transcript: "Hello there.", voice: VOICE, output_format: RAW })
      .then(async (response) => ({ size: (await response.arrayBuffer()).byteLength })),
  async cartesiaSocket(client) {
    const socket = await client.tts.websocket();
    const context = socket.context({ model_id: "sonic-3", voice: VOICE, output_format: RAW, add_timestamps: true });
    await context.push({ transcript: "Hello " });
    await context.push({ transcript: "there." });
    await context.no_more_inputs();
    const told = { size: 0, words: [] };
    const read = async () => {
      for await (const event of context.receive()) {
        if (event.type === "chunk") told.size += event.audio.length;
        if (event.type === "timestamps") told.words.push(...event.word_timestamps.words);
      }
    };
    // What is wrong with the connection is told to its listeners alone.
    await Promise.race([read(), new Promise((_, reject) => socket.on("error", reject))]);
    socket.close();
    return told;
  },
  deepgramBytes: (client) =>
    client.speak.v1.audio
      .generate({ text: "Hello there.", model: "alloy", encoding: "linear16", container: "none" })
      .then(async (response) => ({ size: await sizeOf(response.stream()) })),
  async deepgramSocket(client) {
    const socket = await client.speak.v1.connect({ model: "alloy", encoding: "linear16", reconnectAttempts: 0 });
    const told = { size: 0, events: [] };
    const ended = new Promise((resolve) => {
      socket.on("message", (message) => {
        if (message instanceof Blob || message instanceof ArrayBuffer) return (told.size += message.size ?? message.byteLength);
        told.events.push(message.type);
        if (message.type === "Flushed") resolve();
      });
      socket.on("close", resolve);
      socket.on("error", resolve);
    });
    socket.on("open", () => (told.protocol = socket.socket.protocol));
    socket.connect();
    await socket.waitForOpen();
    socket.sendText({ type: "Speak", text: "Hello there." });
    socket.sendFlush({ type: "Flush" });
    await ended;
    socket.close();
    return told;
  },
  async elevenlabsStream(client) {
    return { size: await sizeOf(await client.textToSpeech.stream("alloy", { text: "Hello there.", outputFormat: "pcm_24000" })) };
  },
  async elevenlabsTimes(client) {
    const spoken = await client.textToSpeech.convertWithTimestamps("alloy", { text: "Hello there.", outputFormat: "pcm_24000" });
    return { size: atob(spoken.audioBase64).length, text: spoken.alignment.characters.join("") };
  },
  async elevenlabsDialogue(client) {
    const inputs = [{ text: "Hello there.", voiceId: "alloy" }, { text: "Good evening.", voiceId: "nova" }];
    return { size: await sizeOf(await client.textToDialogue.stream({ inputs, outputFormat: "pcm_24000" })) };
  },
};

const vendor = (client, way, url, key) => SPEAK[way](CLIENTS[client](url, key));
const refused = (client, way, url, key) => refusal(vendor(client, way, url, key));
Object.assign(globalThis, { vendor, refused });
