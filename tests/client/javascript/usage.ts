// What a TypeScript program may write, and may not.
import { ApiError, connect, type SpeechEvent } from "../../../web/client.js";

export async function say(tokens: AsyncIterable<string>): Promise<Int16Array[]> {
  const node = await connect("http://127.0.0.1:8100", { apiKey: "key", signal: AbortSignal.timeout(1_000) });
  const speech = node.open({ voice: "nova", speed: 1.2, lead_ms: null });
  for await (const token of tokens) speech.write(token);
  speech.end();
  const heard: Int16Array[] = [];
  for await (const event of speech) {
    if (event.type === "audio") heard.push(event.pcm);
    else if (event.type === "words") console.log(event.words[0]?.start_ms.toFixed());
    else if (event.type === "context.cancelled") console.log(event.heard_text.trim());
  }
  // @ts-expect-error no such option
  node.open({ tone: "nova" });
  // @ts-expect-error text is a string
  speech.write(5);
  node.onclose = (error: ApiError) => console.log(error.retryAfterMs ?? 0);
  return heard;
}

export const isLast = (event: SpeechEvent): boolean => event.type === "audio" && event.last;
