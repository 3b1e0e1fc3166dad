#!/usr/bin/env python3
"""Berth in front of real model servers: what happens, as a report.

Not in CI: it needs two vLLM servers with runtime LoRA updating and, if given, a llama.cpp server, all serving the base
model under one name. It sends a bounded number of requests, to loopback or to the pods named, and then stops.

  scripts/build
  tests/real-engines/run.py --vllm 127.0.0.1:18400 127.0.0.1:18401 --llamacpp 127.0.0.1:18410 --model base \\
      --adapter fr=/path/to/lora --kill 'command that ends the second vLLM' --start 'command that starts it again' \\
      --freeze 'command that stops the second vLLM and all of its processes (SIGSTOP)' --thaw 'command that lets it go on (SIGCONT)'
"""
import argparse, collections, http.client, json, os, random, signal, statistics, subprocess, sys, tempfile, threading, time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
GATEWAY, ADMIN = ("127.0.0.1", 18080), ("127.0.0.1", 19901)


def post(address, path, body, stream=False, timeout=120):
    """One POST: (status, headers, body text, seconds to the first body byte, seconds in all)."""
    started = time.monotonic()
    connection = http.client.HTTPConnection(*address, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        first = answer.read(1)
        at_first = time.monotonic() - started
        rest = first + answer.read()
        return answer.status, dict(answer.getheaders()), rest.decode(errors="replace"), at_first, time.monotonic() - started
    except (OSError, http.client.HTTPException) as error:
        return 0, {}, repr(error), 0.0, time.monotonic() - started
    finally:
        connection.close()


def get(address, path):
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def chat(model, words, tokens, stream, address=GATEWAY):
    text = " ".join(random.choice(("alpha", "beta", "gamma", "delta")) for _ in range(words))
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "stream": stream, "ignore_eos": True}
    return post(address, "/v1/chat/completions", body, stream)


def pod_of(headers):
    decision = headers.get("x-berth-decision", "")
    return next((part[4:] for part in decision.split(";") if part.startswith("pod=")), decision or "?")


def counter(pod, name):
    total = 0.0
    for line in get(pod, "/metrics").splitlines():
        if line.startswith(name):
            total += float(line.rsplit(" ", 1)[1])
    return total


class Envoy:
    """Envoy with Berth, or the same without."""

    def __init__(self, config, *more):
        self.folder = tempfile.mkdtemp(prefix="berth-real-")
        path = os.path.join(self.folder, "berth.json")
        with open(path, "w") as file:
            json.dump(config, file)
        yaml = subprocess.run(
            [f"{ROOT}/dist/berth", "render", "envoy", "--config", path, "--wasm", f"{ROOT}/dist",
             "--listen", "%s:%d" % GATEWAY, "--admin", "%s:%d" % ADMIN, *more], check=True, capture_output=True, text=True).stdout
        with open(os.path.join(self.folder, "envoy.yaml"), "w") as file:
            file.write(yaml)
        binary = subprocess.run([f"{ROOT}/scripts/envoy"], check=True, capture_output=True, text=True).stdout.strip()
        self.log = open(os.path.join(self.folder, "envoy.log"), "w")
        self.process = subprocess.Popen(
            [binary, "-c", os.path.join(self.folder, "envoy.yaml"), "--concurrency", "2", "--disable-hot-restart",
             "-l", "warning", "--component-log-level", "wasm:info"], stderr=self.log, stdout=self.log)
        wait("Envoy", lambda: get(ADMIN, "/ready").startswith("LIVE"), 60)

    def stats(self, part):
        return [line for line in get(ADMIN, f"/stats?filter={part}").splitlines() if not line.endswith(": 0")]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def wait(what, probe, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if probe():
                return seconds - (end - time.monotonic())
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.1)
    sys.exit(f"waited {seconds} s for {what}")


class Traffic:
    """Base-model requests in the background until stopped; keeps what came back."""

    def __init__(self, model, threads, words=60, tokens=40):
        self.answers, self.running = [], True
        self.threads = [threading.Thread(target=self.loop, args=(model, words, tokens, n), daemon=True) for n in range(threads)]
        for thread in self.threads:
            thread.start()

    def loop(self, model, words, tokens, n):
        turn = n
        while self.running:
            turn += 1
            status, headers, text, first, _ = chat(model, words, tokens, stream=turn % 5 < 3)
            self.answers.append((time.monotonic(), status, pod_of(headers), first, text))

    def stop(self):
        self.running = False
        for thread in self.threads:
            thread.join()
        return self.answers


def heading(text):
    print(f"\n## {text}\n", flush=True)


def spread(answers):
    return dict(sorted(collections.Counter(f"{status} {pod}" for _, status, pod, *_ in answers).items()))


def load(model, clients, each, words, tokens):
    """`clients` at once, `each` streams one after the other: seconds to first token of all."""
    firsts, bad, lock = [], collections.Counter(), threading.Lock()

    def client():
        for _ in range(each):
            status, _, _, first, _ = chat(model, words, tokens, stream=True)
            with lock:
                firsts.append(first) if status == 200 else bad.update([status])

    started = time.monotonic()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    firsts.sort()
    return {"requests": len(firsts), "bad": dict(bad), "seconds": round(time.monotonic() - started, 1),
            "ttft mean s": round(statistics.mean(firsts), 2), "ttft p50 s": round(firsts[len(firsts) // 2], 2),
            "ttft p90 s": round(firsts[int(len(firsts) * 0.9)], 2), "ttft max s": round(firsts[-1], 2)}


def shared_prefixes(model, pods, seed, groups=12, each=40, words=250):
    """`groups` long texts, each asked about `each` times, shuffled, by four clients: what the engines found in their caches."""
    order = random.Random(seed)
    texts = [" ".join(order.choice(("alpha", "beta", "gamma", "delta")) for _ in range(words)) for _ in range(groups)]
    asks = [group for group in range(groups) for _ in range(each)]
    order.shuffle(asks)
    names = ("vllm:prompt_tokens_total", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    read = lambda: [sum(counter(pod, name) for pod in pods) for name in names]
    before, answers, lock = read(), [], threading.Lock()

    def client():
        while True:
            with lock:
                if not asks:
                    return
                number, group = len(asks), asks.pop()
            body = {"model": model, "max_tokens": 8, "stream": True, "ignore_eos": True,
                    "messages": [{"role": "user", "content": f"{texts[group]} question {number}"}]}
            answer = post(GATEWAY, "/v1/chat/completions", body, stream=True)
            with lock:
                answers.append((group, answer))

    threads = [threading.Thread(target=client) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    prompt, queries, hits = (after - at for at, after in zip(before, read()))
    firsts = sorted(answer[3] for _, answer in answers)
    part = lambda answer, name: next((x[len(name) + 1:] for x in answer[1].get("x-berth-decision", "").split(";") if x.startswith(name + "=")), "0")
    homes = {group: collections.Counter(pod_of(answer[1]) for g, answer in answers if g == group) for group in range(groups)}
    return {"statuses": dict(collections.Counter(answer[0] for _, answer in answers)), "engine prompt tokens": prompt,
            "found in caches": f"{hits / max(queries, 1):.0%}", "Berth expected": sum(float(part(answer, "cached")) for _, answer in answers),
            "ttft mean s": round(statistics.mean(firsts), 3), "ttft p90 s": round(firsts[int(len(firsts) * 0.9)], 3),
            "pods a group went to": [len(pods) for pods in homes.values()]}


def steps(pod, model):
    """A long stream straight from a pod, and meanwhile prompts of somebody else: milliseconds between its pieces, usually and while
    such a prompt is computed."""
    ask = lambda words, tokens: json.dumps({"model": model, "max_tokens": tokens, "stream": True, "ignore_eos": True, "messages": [
        {"role": "user", "content": " ".join(random.choice(("alpha", "beta", "gamma", "delta")) for _ in range(words))}]})

    def pieces(words, tokens, times):
        connection = http.client.HTTPConnection(*pod, timeout=60)
        connection.request("POST", "/v1/chat/completions", ask(words, tokens), {"content-type": "application/json"})
        answer = connection.getresponse()
        while line := answer.readline():
            if line.startswith(b"data:"):
                times.append(time.monotonic())
        connection.close()

    stream, prompts = [], []
    listener = threading.Thread(target=pieces, args=(20, 1500, stream))
    listener.start()
    wait("the stream", lambda: len(stream) > 50, 30)
    while listener.is_alive():
        sent, others = time.monotonic(), []
        pieces(250, 1, others)
        prompts.append((sent, others[0]))
        time.sleep(0.1)
    gaps = [(1000 * (after - at), at, after) for at, after in zip(stream, stream[1:])]
    during = [max(gap for gap, at, after in gaps if after > sent and at < first) for sent, first in prompts if first < stream[-1]]
    quartile = statistics.quantiles([gap for gap, *_ in gaps if gap >= 1] or [0.5, 0.5], n=4)[0]
    return {"pieces": len(stream), "lower quartile ms": round(quartile, 1), "longest while a prompt was computed ms": [round(gap) for gap in during]}


def silence(model, freeze, thaw, frozen, seconds):
    """Six streams a second while long ones run, and in the middle an engine stands still: where the short ones went, and how long
    after the engine stood still those were sent that went to it."""
    sent = []

    def ask(words, tokens):
        at = time.monotonic()
        status, headers, *_ = chat(model, words, tokens, True)
        sent.append((at, status, pod_of(headers), tokens))

    def begin(words, tokens):
        thread = threading.Thread(target=ask, args=(words, tokens))
        thread.start()
        return thread

    def ask_for(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            threads.append(begin(20, 5))
            time.sleep(1 / 6)

    # Both workers are to hear both engines.
    threads = [begin(20, 3000) for _ in range(8)]
    time.sleep(3)
    ask_for(seconds)
    subprocess.run(freeze, shell=True, check=False)
    stood_still = time.monotonic()
    ask_for(seconds)
    subprocess.run(thaw, shell=True, check=False)
    for thread in threads:
        thread.join()
    short = [one for one in sent if one[3] == 5]
    before = collections.Counter(pod for at, _, pod, _ in short if at < stood_still)
    after = collections.Counter(pod for at, _, pod, _ in short if at >= stood_still)
    late = sorted(round(at - stood_still, 2) for at, _, pod, _ in short if at >= stood_still and pod == frozen)
    return {"before": dict(before), "after": dict(after), "sent to it after s": late, "not 200": sum(one[1] != 200 for one in sent)}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--vllm", nargs=2, required=True)
    arguments.add_argument("--llamacpp")
    arguments.add_argument("--model", required=True)
    arguments.add_argument("--adapter", required=True, help="NAME=PATH, loaded at run time")
    arguments.add_argument("--static-adapter", help="an adapter that the first vLLM was started with")
    arguments.add_argument("--kill", help="shell command that ends the second vLLM")
    arguments.add_argument("--start", help="shell command that starts it again, in the background")
    arguments.add_argument("--freeze", help="shell command that stops all processes of the second vLLM")
    arguments.add_argument("--thaw", help="shell command that lets them go on")
    arguments.add_argument("--phases", default="steps,silence,chat,adapters,pressure,prefixes,restart", help="which of them, in this order")
    args = arguments.parse_args()
    phases = args.phases.split(",")
    split = lambda text: (text.rsplit(":", 1)[0], int(text.rsplit(":", 1)[1]))
    first, second = map(split, args.vllm)
    every = [*args.vllm, *([args.llamacpp] if args.llamacpp else [])]
    config = {"pools": [{"name": "real", "discovery": {"static": every}}], "status": {"decision_header": True}}
    envoy = Envoy(config)
    time.sleep(3)

    if "steps" in phases:
        heading("Gaps of a stream while others' prompts are computed")
        for pod in every:
            print(pod, steps(split(pod), args.model))

    if "silence" in phases and args.freeze and args.thaw:
        heading("The second vLLM stands still while streams run")
        print(silence(args.model, args.freeze, args.thaw, args.vllm[1], 4))

    if "chat" in phases:
        heading("Chat and streams")
        answers = Traffic(args.model, 4)
        time.sleep(15)
        answers = answers.stop()
        print(f"{len(answers)} answers in 15 s: {spread(answers)}")
        print("not 200:", [(status, pod, text[:120]) for _, status, pod, _, text in answers if status != 200])

    if "adapters" in phases:
        if args.static_adapter:
            heading(f"Adapter {args.static_adapter}, known to the first vLLM only")
            got = [chat(args.static_adapter, 20, 10, True) for _ in range(6)]
            print(collections.Counter(f"{g[0]} {pod_of(g[1])}" for g in got))

        name, path = args.adapter.split("=", 1)
        heading(f"Adapter {name} loaded at run time while traffic flows")
        traffic = Traffic(args.model, 3)
        before = chat(name, 20, 10, False)
        print(f"before: {before[0]} {before[1].get('x-berth-decision', '')[:90]}")
        print("load:", post(second, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})[::2][:2])
        started = time.monotonic()
        tries = collections.Counter()
        while time.monotonic() - started < 30:
            status, headers, *_ = chat(name, 20, 10, False)
            tries[f"{status} {pod_of(headers)[:40]}"] += 1
            if status == 200:
                break
            time.sleep(0.2)
        print(f"first 200 after {time.monotonic() - started:.1f} s; tries: {dict(tries)}")
        got = [chat(name, 20, 10, turn % 2 == 0) for turn in range(8)]
        print("then:", collections.Counter(f"{g[0]} {pod_of(g[1])}" for g in got))
        print("unload:", post(second, "/v1/unload_lora_adapter", {"lora_name": name})[::2][:2])
        started = time.monotonic()
        tries = collections.Counter()
        while time.monotonic() - started < 30:
            status, headers, text, *_ = chat(name, 20, 10, False)
            who = "Berth" if "x-berth-reason" in headers else "engine"
            tries[f"{status} by {who}"] += 1
            if status == 404 and who == "Berth":
                break
            time.sleep(0.5)
        print(f"after unloading, {time.monotonic() - started:.1f} s: {dict(tries)}")
        answers = traffic.stop()
        print("other traffic meanwhile:", spread(answers))
        print("not 200:", [(status, pod, text[:120]) for _, status, pod, _, text in answers if status != 200])

    if "pressure" in phases:
        heading("KV pressure: Berth and round robin under the same load")
        pressure = dict(model=args.model, clients=14, each=2, words=900, tokens=900)
        preempted = lambda: [counter(pod, "vllm:num_preemptions_total") for pod in (first, second)]
        at = preempted()
        print("Berth:      ", load(**pressure), "preemptions", [b - a for a, b in zip(at, preempted())])
        print("\n".join(envoy.stats("wasmcustom.berth.pool")))
        envoy.stop()
        envoy = Envoy(config, "--without-berth")
        at = preempted()
        print("round robin:", load(**pressure), "preemptions", [b - a for a, b in zip(at, preempted())])
        envoy.stop()
        envoy = Envoy(config)

    if "prefixes" in phases:
        heading("Twelve long texts, each asked about forty times: Berth and round robin")
        for seed in (1, 3):
            print("Berth:      ", shared_prefixes(args.model, (first, second), seed))
            envoy.stop()
            envoy = Envoy(config, "--without-berth")
            print("round robin:", shared_prefixes(args.model, (first, second), seed + 1))
            envoy.stop()
            envoy = Envoy(config)
            time.sleep(3)

    if "restart" in phases and args.kill and args.start:
        heading("The second vLLM is killed under traffic, and started again")
        traffic = Traffic(args.model, 2)
        time.sleep(6)
        killed = time.monotonic()
        subprocess.run(args.kill, shell=True, check=False)
        time.sleep(12)
        restarted = time.monotonic()
        subprocess.Popen(args.start, shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        wait("the second vLLM", lambda: get(second, "/health") == "", 600)
        healthy = time.monotonic()
        time.sleep(15)
        answers = traffic.stop()
        late = [(at - killed, status, text) for at, status, _, _, text in answers if at > killed and status != 200]
        print(f"before the kill: {spread([a for a in answers if a[0] <= killed])}")
        print(f"pod dead:        {spread([a for a in answers if killed < a[0] <= healthy])}")
        print(f"pod back:        {spread([a for a in answers if a[0] > healthy])}")
        print(f"not 200 after the kill: {[(round(at, 1), status, text[:80]) for at, status, text in late]}")
        back = [at - healthy for at, status, pod, *_ in answers if at > healthy and pod == args.vllm[1]]
        print(f"dead for {healthy - killed:.0f} s; first answer from it {back[0] if back else float('nan'):.1f} s after /health was 200 again")
        print("\n".join(envoy.stats("wasmcustom.berth")))
        with open(envoy.log.name) as log:
            print("\nEnvoy's log:\n" + "".join(line for line in log if "wasm log" in line)[-3000:])
    envoy.stop()


if __name__ == "__main__":
    main()
