/** The code with which a WebSocket is closed after a message above the limit (RFC 6455, section 7.4.1). */
const TOO_LONG = 1009;

/** Returns the address of the editing sessions: that of the page, with the scheme `ws` or `wss`. */
function editAddress() {
  const address = new URL("/v1/edit", location.href);
  address.protocol = address.protocol.replace(/^[a-z]{4}/, "ws");
  return address;
}

/** Returns the subprotocols of a session. One of them carries the key: a page cannot set headers of a WebSocket. */
function editProtocols() {
  const { authorization } = headers();
  if (!authorization) return ["weir.v1.edit"];
  const code = btoa(authorization.slice("Bearer ".length)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  return ["weir.v1.edit", `weir.v1.bearer.${code}`];
}

/** A document that the server has, over one WebSocket. Offsets of its methods are units of UTF-16 in the text. */
class EditSocket {
  /** `handle` gets each answer, by its name, and `ended` what ended the session. Aborting `signal` closes it. */
  constructor(model, text, signal, handle, ended) {
    this.text = text;
    this.revision = 0;
    this.nextId = 1;
    this.isOpen = false;
    this.last = {};
    // By the id of a request, what takes its answer.
    this.waiting = new Map();
    this.socket = new WebSocket(editAddress(), editProtocols());
    const end = (code) => {
      if (!this.socket) return;
      this.socket.close();
      this.socket = null;
      signal.removeEventListener("abort", abort);
      ended({ code, isOpened: this.isOpen, ...this.last });
    };
    const abort = () => end(1000);
    signal.addEventListener("abort", abort);
    this.socket.addEventListener("open", () => this.send({ open: { model, text } }));
    this.socket.addEventListener("close", ({ code }) => {
      // The server closes a socket whose message is too long: the same text would fail again.
      if (code === TOO_LONG) this.last.refused = { message: "", reason: "MESSAGE_TOO_LONG", field: "text" };
      end(code);
    });
    this.socket.addEventListener("message", ({ data }) => {
      // Answers may still arrive while the socket closes.
      if (!this.socket) return;
      const message = JSON.parse(data);
      const { applied, failed, closed, error } = message;
      if (applied) this.isOpen = true;
      if (closed) this.last.reason = closed.reason;
      if (error) this.last.error = new RequestError(`The server ended the session: ${error.message}.`);
      // The document differs from the page's text, or does not exist: open it again.
      if (failed && failed.id === undefined) {
        this.last.refused = failed;
        end(1000);
      } else if (this.isOpen) {
        const { id } = message.completions || message.scores || message.stale || failed || {};
        const take = this.waiting.get(id) || handle;
        this.waiting.delete(id);
        take(message);
      }
    });
  }

  /** Resolves with the answer to a request, which may be that the text has changed. */
  answer(id) {
    return new Promise((resolve) => this.waiting.set(id, resolve));
  }

  send(message) {
    if (this.socket && this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  /** Changes the text. Returns the change, none if it is the same text. */
  change(text) {
    if (text === this.text) return null;
    const change = replacement(this.text, text);
    const { start, end, text: added } = change;
    const startByte = bytesOf(this.text.slice(0, start));
    const endByte = startByte + bytesOf(this.text.slice(start, end));
    this.text = text;
    this.revision += 1;
    this.send({ splice: { revision: this.revision, splices: [{ start_byte: startByte, end_byte: endByte, text: added }] } });
    return change;
  }

  /** Asks for completions. Returns the request's id. */
  complete(cursor, until) {
    const id = this.nextId++;
    this.send({ complete: { id, cursor_byte: bytesOf(this.text.slice(0, cursor)), count: 3, until } });
    return id;
  }

  /** Asks for the surprise of a range of the text. Returns the request's id. */
  score(start, end) {
    const id = this.nextId++;
    const startByte = bytesOf(this.text.slice(0, start));
    this.send({ score: { id, start_byte: startByte, end_byte: startByte + bytesOf(this.text.slice(start, end)) } });
    return id;
  }
}
