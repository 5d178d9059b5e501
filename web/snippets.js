/** The page's settings as example code. */

/**
 * @typedef {object} Choice
 * @property {URL} base address of the node
 * @property {string} voice
 * @property {string} language "auto" follows the voice
 * @property {number} speed
 * @property {string} instructions "" for an engine that takes none
 * @property {string} text
 * @property {boolean} locked whether the node asks for a key
 */

const MOST_TEXT = 80;

/** @type {Record<string, (choice: Choice) => string>} */
export const SNIPPETS = { python, javascript, curl };

/**
 * The fields that differ from the node's defaults.
 * @param {Choice} choice
 */
function fields({ voice, language, speed, instructions }) {
  return {
    voice,
    ...(language === "auto" ? {} : { language }),
    ...(speed === 1 ? {} : { speed }),
    ...(instructions ? { instructions } : {}),
  };
}

/** @param {Choice} choice */
function python(choice) {
  const { base, text, locked } = choice;
  const args = Object.entries(fields(choice)).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  const key = locked ? ', api_key=os.environ["AGENT_TTS_KEY"]' : "";
  return `import asyncio
${locked ? "import os\n" : ""}import wave

from agent_tts import connect


async def main() -> None:
    async with connect(${JSON.stringify(origin(base))}${key}) as node:
        speech = await node.open(${args.join(", ")})
        for token in ${JSON.stringify(short(text))}.split(" "):  # your LLM
            speech.write(token + " ")
        speech.end()
        with wave.open("speech.wav", "wb") as file:
            file.setparams((1, 2, 24_000, 0, "NONE", ""))
            async for pcm in speech:  # 16-bit mono at 24 kHz, as it is made
                file.writeframes(pcm)


asyncio.run(main())
`;
}

/** @param {Choice} choice */
function javascript(choice) {
  const { base, text, locked } = choice;
  const url = new URL("v1/tts/stream", base);
  url.protocol = url.protocol.replace("http", "ws");
  const token = locked
    ? `const { token } = await (await fetch("${new URL("v1/tokens", base)}", { // on your server
  method: "POST", headers: { Authorization: \`Bearer \${process.env.AGENT_TTS_KEY}\` },
})).json();
`
    : "";
  const address = locked ? `\`${url}?token=\${token}\`` : JSON.stringify(String(url));
  return `${token}const node = new WebSocket(${address}, "agent_tts.v1");
node.binaryType = "arraybuffer";
const audio = new AudioContext({ sampleRate: 24_000 });
let playedUntil = 0;
const send = (message) => node.send(JSON.stringify({ context_id: "t1", ...message }));

node.onopen = () => {
  send({ type: "context.open", ...${JSON.stringify(fields(choice))} });
  for (const token of ${JSON.stringify(short(text))}.split(" ")) { // your LLM
    send({ type: "text.append", text: token + " " });
  }
  send({ type: "context.end" });
};
node.onmessage = ({ data }) => {
  if (typeof data === "string") return console.log(JSON.parse(data));
  const pcm = Float32Array.from(new Int16Array(data, 16), (sample) => sample / 32_768);
  if (!pcm.length) return; // the end
  const buffer = audio.createBuffer(1, pcm.length, 24_000);
  buffer.copyToChannel(pcm, 0);
  const chunk = audio.createBufferSource();
  chunk.buffer = buffer;
  chunk.connect(audio.destination);
  playedUntil = Math.max(playedUntil, audio.currentTime + 0.05);
  chunk.start(playedUntil);
  playedUntil += buffer.duration;
};
// Barge-in: send({ type: "context.cancel", played_ms: heardSoFar });
`;
}

/** @param {Choice} choice */
function curl(choice) {
  const { base, text, locked } = choice;
  const body = { model: "tts-1", input: short(text), ...fields(choice), response_format: "wav" };
  const key = locked ? `  -H "Authorization: Bearer $AGENT_TTS_KEY" \\\n` : "";
  return `curl -N ${new URL("v1/audio/speech", base)} \\
${key}  -H "Content-Type: application/json" \\
  -d '${JSON.stringify(body).replaceAll("'", String.raw`'\''`)}' \\
  --output speech.wav
`;
}

/** @param {URL} base */
function origin(base) {
  return String(new URL(".", base)).replace(/\/$/, "");
}

/** @param {string} text */
function short(text) {
  const line = text.trim().replace(/\s+/g, " ");
  const characters = [...line];
  return characters.length <= MOST_TEXT ? line : `${characters.slice(0, MOST_TEXT).join("").replace(/\s\S*$/, "")}…`;
}
