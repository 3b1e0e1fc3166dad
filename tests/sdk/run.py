#!/usr/bin/env python3
"""The official clients of OpenAI and Anthropic, unmodified, against Berth as scripts/run starts it.

Not in CI: the clients come from PyPI and change every week. In front of small pods of its own, which refuse every name
that they do not list, as vLLM does, so that a name that was not replaced is seen.

  python3 -m venv /tmp/clients && /tmp/clients/bin/pip install openai anthropic
  /tmp/clients/bin/python tests/sdk/run.py
"""
import http.server, io, json, os, re, signal, socket, subprocess, sys, tempfile, threading, time, traceback

import anthropic, openai

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="8000"} 1.0
"""
WORDS = ["Hello", " from", " a", " pod"]
USAGE = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9, "input_tokens": 5, "output_tokens": 4}


class Pod(http.server.BaseHTTPRequestHandler):
    """Speaks as much of vLLM as the clients look at."""

    protocol_version = "HTTP/1.1"
    base, adapters = "llama", ["sql"]

    def log_message(self, *_):
        pass

    def send(self, status, body, kind="application/json"):
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, events):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for name, event in events:
            text = (f"event: {name}\n" if name else "") + f"data: {event if event == '[DONE]' else json.dumps(event)}\n\n"
            # Two pieces, cut where it hurts.
            cut = text.find('"model"') + 12 if '"model"' in text else len(text) // 2
            for piece in (text[:cut].encode(), text[cut:].encode()):
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def do_GET(self):
        if self.path == "/metrics":
            return self.send(200, METRICS, "text/plain; version=1.0.0")
        if self.path == "/v1/models":
            entry = lambda id, parent: {"id": id, "object": "model", "created": 1, "owned_by": "vllm", "parent": parent,
                                        "max_model_len": None if parent else 4096}
            names = [entry(self.base, None)] + [entry(name, self.base) for name in self.adapters]
            return self.send(200, {"object": "list", "data": names})
        self.send(404, {"detail": "Not Found"})

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("content-type", "").startswith("multipart/"):
            found = re.search(rb'name="model"\r\n(?:.*\r\n)*?\r\n(.*?)\r\n', raw)
            body = {"model": found.group(1).decode() if found else None}
        else:
            body = json.loads(raw)
        model = body.get("model")
        if model not in [self.base, *self.adapters]:
            return self.send(404, {"error": {"message": f"The pod has no {model!r}.", "type": "NotFoundError", "code": 404}})
        if body.get("max_tokens") == 999_999:
            return self.send(400, {"error": {"message": "too long", "type": "BadRequestError", "code": 400}})
        answer = getattr(self, self.path.strip("/").replace("/", "_"), None)
        return answer(model, body) if answer else self.send(404, {"detail": "Not Found"})

    def v1_chat_completions(self, model, body):
        head = {"id": "c", "created": 1, "model": model}
        if body.get("stream"):
            chunk = lambda delta, reason=None: (None, {**head, "object": "chat.completion.chunk", "choices": [
                {"index": 0, "delta": delta, "finish_reason": reason}]})
            return self.stream([chunk({"content": word}) for word in WORDS] + [chunk({}, "stop"), (None, "[DONE]")])
        message = {"role": "assistant", "content": "".join(WORDS)}
        self.send(200, {**head, "object": "chat.completion", "usage": USAGE, "choices": [
            {"index": 0, "message": message, "finish_reason": "stop"}]})

    def v1_completions(self, model, body):
        self.send(200, {"id": "c", "object": "text_completion", "created": 1, "model": model, "usage": USAGE,
                        "choices": [{"index": 0, "text": "".join(WORDS), "finish_reason": "stop"}]})

    def v1_embeddings(self, model, body):
        self.send(200, {"object": "list", "model": model, "usage": USAGE,
                        "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]})

    def v1_responses(self, model, body):
        text = {"type": "output_text", "text": "".join(WORDS), "annotations": []}
        message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
        whole = {"id": "r", "object": "response", "created_at": 1, "model": model, "status": "completed",
                 "output": [message], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        if not body.get("stream"):
            return self.send(200, whole)
        delta = lambda word: ("response.output_text.delta", {"type": "response.output_text.delta", "delta": word,
                              "item_id": "m", "output_index": 0, "content_index": 0, "sequence_number": 1, "logprobs": []})
        event = lambda name: (name, {"type": name, "response": whole, "sequence_number": 0})
        self.stream([event("response.created"), *map(delta, WORDS), event("response.completed")])

    def v1_audio_transcriptions(self, model, body):
        self.send(200, {"text": f"heard by {model}"})

    def v1_messages(self, model, body):
        head = {"id": "m", "type": "message", "role": "assistant", "model": model, "stop_sequence": None, "usage": USAGE}
        if not body.get("stream"):
            return self.send(200, {**head, "content": [{"type": "text", "text": "".join(WORDS)}], "stop_reason": "end_turn"})
        event = lambda type, **more: (type, {"type": type, **more})
        delta = lambda word: event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
        self.stream([
            event("message_start", message={**head, "content": [], "stop_reason": None}),
            event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            *map(delta, WORDS), event("content_block_stop", index=0),
            event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 4}),
            event("message_stop")])

    def v1_messages_count_tokens(self, model, body):
        self.send(200, {"input_tokens": 5})


def pod(base, adapters):
    """A pod on a free port; its address."""
    kind = type("Pod", (Pod,), {"base": base, "adapters": adapters})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"127.0.0.1:{server.server_port}"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fails(kind, call):
    """The error that a call must end with."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def checks(gateway):
    """What must hold: a sentence and a function each."""
    ai = openai.OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0)
    claude = anthropic.Anthropic(base_url=gateway, api_key="none", max_retries=0)
    hello = [{"role": "user", "content": "Hello"}]
    text = "".join(WORDS)
    chat = lambda model, **more: ai.chat.completions.create(model=model, messages=hello, **more)
    message = lambda model, **more: claude.messages.create(model=model, messages=hello, max_tokens=9, **more)

    def models():
        assert {model.id for model in ai.models.list()} == {"llama", "sql", "org/large", "gpt", "opus", "whisper-1"}
        assert ai.models.retrieve("sql").id == "sql"
        assert ai.models.retrieve("org/large").id == "org/large"
        assert fails(openai.NotFoundError, lambda: ai.models.retrieve("nobody")).code == "model_not_found"

    def whole():
        for model in ["llama", "sql", "gpt", "org/large"]:
            answer = chat(model)
            assert (answer.model, answer.choices[0].message.content) == (model, text), answer

    def streamed():
        for model in ["sql", "gpt"]:
            chunks = list(chat(model, stream=True))
            assert {chunk.model for chunk in chunks} == {model}, chunks
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text

    def others():
        answer = ai.completions.create(model="gpt", prompt="Hello")
        assert (answer.model, answer.choices[0].text) == ("gpt", text), answer
        answer = ai.embeddings.create(model="gpt", input="Hello", encoding_format="float")
        assert (answer.model, answer.data[0].embedding) == ("gpt", [0.5, 0.25]), answer

    def responses():
        answer = ai.responses.create(model="gpt", input="Hello")
        assert (answer.model, answer.output_text) == ("gpt", text), answer
        events = list(ai.responses.create(model="gpt", input="Hello", stream=True))
        assert [event.response.model for event in events if hasattr(event, "response")] == ["gpt", "gpt"], events
        assert "".join(event.delta for event in events if hasattr(event, "delta")) == text

    def audio():
        file = ("a.wav", io.BytesIO(b"RIFF" * 1000))
        answer = ai.audio.transcriptions.create(model="whisper-1", file=file)
        assert answer.text == "heard by llama", answer

    def errors():
        error = fails(openai.NotFoundError, lambda: chat("nobody"))
        assert (error.code, error.param) == ("model_not_found", "model"), error
        assert "nobody" in error.message, error
        assert fails(openai.BadRequestError, lambda: chat("gpt", max_tokens=999_999)).message, "the pod's own error"

    def claude_models():
        listed = claude.models.list(limit=20)
        assert "opus" in {model.id for model in listed} and not listed.has_more, listed
        assert claude.models.retrieve("opus").display_name == "opus"
        fails(anthropic.NotFoundError, lambda: claude.models.retrieve("nobody"))

    def claude_messages():
        for model in ["org/large", "opus"]:
            answer = message(model)
            assert (answer.model, answer.content[0].text) == (model, text), answer
        assert claude.messages.count_tokens(model="opus", messages=hello).input_tokens == 5

    def claude_stream():
        with claude.messages.stream(model="opus", messages=hello, max_tokens=9) as stream:
            assert "".join(stream.text_stream) == text
            assert stream.get_final_message().model == "opus"

    def claude_errors():
        error = fails(anthropic.NotFoundError, lambda: message("nobody"))
        assert error.body["type"] == "error" and error.body["error"]["type"] == "not_found_error", error.body

    return [
        ("openai: models are listed over both pools, each can be retrieved, an unknown one is NotFoundError", models),
        ("openai: chat with a base, an adapter, an alias, and a model of the other pool", whole),
        ("openai: chat as a stream, the alias comes back in every chunk", streamed),
        ("openai: completions and embeddings", others),
        ("openai: responses, whole and as a stream", responses),
        ("openai: a transcription, its alias in a form", audio),
        ("openai: errors of the gateway and of the pod have their classes", errors),
        ("anthropic: models", claude_models),
        ("anthropic: messages and count_tokens", claude_messages),
        ("anthropic: messages as a stream", claude_stream),
        ("anthropic: an unknown model is NotFoundError", claude_errors),
    ]


def main():
    one, two = pod("llama", ["sql"]), pod("org/large", [])
    alias = lambda name, model: {"from": name, "to": [{"model": model}]}
    config = {"pools": [{"name": "one", "discovery": {"static": [one]}}, {"name": "two", "discovery": {"static": [two]}}],
              "rewrites": [alias("gpt", "llama"), alias("whisper-1", "llama"), alias("opus", "org/large")]}
    port, admin = free_port(), free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        command = [f"{ROOT}/scripts/run", "--config", file.name, "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
        gateway = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            return run(f"http://127.0.0.1:{port}", gateway)
        finally:
            gateway.send_signal(signal.SIGINT)
            gateway.wait(30)


def run(gateway, process):
    print(f"openai {openai.__version__}, anthropic {anthropic.__version__}")
    started, ready = time.monotonic(), False
    while not ready and process.poll() is None and time.monotonic() - started < 600:
        time.sleep(0.2)
        try:
            models = openai.OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0).models.list()
            ready = {"llama", "org/large"} <= {model.id for model in models}
        except openai.OpenAIError:
            pass
    if not ready:
        print("the gateway does not list both models")
        return 1
    failed = 0
    for sentence, check in checks(gateway):
        try:
            check()
            print(f"  ok    {sentence}")
        except Exception:
            failed += 1
            print(f"  FAIL  {sentence}\n{traceback.format_exc()}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
