/** Speech by OpenAI's SDK in a page of another origin than the node's, and requests as other vendors' SDKs send them. */
import OpenAI from "openai";

/** The size of the audio, and what the page may read of the answer. */
async function speak(url, apiKey, body) {
  const client = new OpenAI({ apiKey, baseURL: `${url}/v1`, dangerouslyAllowBrowser: true, maxRetries: 0 });
  try {
    const response = await client.audio.speech.create(body);
    return { size: (await response.arrayBuffer()).byteLength, headers: Object.fromEntries(response.headers) };
  } catch (error) {
    return { status: error.status, code: error.code, headers: Object.fromEntries(error.headers ?? []) };
  }
}

const retrieve = async (url, apiKey, id) =>
  (await new OpenAI({ apiKey, baseURL: `${url}/v1`, dangerouslyAllowBrowser: true }).models.retrieve(id)).id;

/** The status of a request; "blocked" if the browser does not let the page send it, or read the answer. */
const ask = (url, headers, body) =>
  fetch(url, { method: body ? "POST" : "HEAD", headers, body: body && JSON.stringify(body) }).then(
    async (response) => (await response.arrayBuffer(), response.status),
    () => "blocked",
  );

Object.assign(globalThis, { speak, retrieve, ask });
