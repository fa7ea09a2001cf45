// A websocket that comes back by itself. Speaks JSON; says which state it is in; never queues what
// could not be sent, because a question answered a minute later is worse than one asked again.

const FIRST_DELAY_MS = 400;
const LONGEST_DELAY_MS = 15_000;

// Closed by the server for a reason that trying again can't mend.
const FINAL_CODES = new Map([
  [4401, "signed-out"],
  [4429, "too-many"],
]);

export class LiveSocket {
  #url;
  #onMessage;
  #onState;
  #socket = null;
  #attempts = 0;
  #timer = 0;
  #final = false;

  // onState gets "connecting", "open", "reconnecting", "signed-out" or "too-many".
  constructor(path, { onMessage, onState }) {
    this.#url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${path}`;
    this.#onMessage = onMessage;
    this.#onState = onState;
    // Don't sit out a long delay when the network, or the reader, is back.
    addEventListener("online", () => this.#hurry());
    addEventListener("offline", () => this.#socket?.close());
    document.addEventListener("visibilitychange", () => document.hidden || this.#hurry());
    // A page kept for the back button must not hold one of the user's few sockets.
    addEventListener("pagehide", () => this.#socket?.close());
    addEventListener("pageshow", (event) => event.persisted && this.#hurry());
    onState("connecting");
    this.#connect();
  }

  // True when the message went out.
  send(message) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(message));
    return true;
  }

  #connect() {
    const socket = new WebSocket(this.#url);
    this.#socket = socket;
    socket.onmessage = (event) => this.#onMessage(JSON.parse(event.data));
    socket.onopen = () => {
      this.#attempts = 0;
      this.#onState("open");
    };
    socket.onclose = (event) => {
      if (socket !== this.#socket) return;
      this.#socket = null;
      const final = FINAL_CODES.get(event.code);
      this.#final = final !== undefined;
      this.#onState(final ?? "reconnecting");
      if (final) return;
      const longest = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#attempts++);
      // Jitter: a restarted server isn't met by all its pages in the same moment.
      this.#timer = setTimeout(() => this.#connect(), longest * (0.5 + Math.random() / 2));
    };
  }

  #hurry() {
    if (this.#socket || this.#final) return;
    clearTimeout(this.#timer);
    this.#attempts = 0;
    this.#connect();
  }
}
