# requirements: clients
"""The Messages endpoint with the official `anthropic` package: whole and streamed, system, stop
sequences, tools, structured output, counting tokens, errors, keys."""

import json
import os
import sys

import anthropic
import jsonschema

from _server import Server, attempt, check, done

MODEL = "test/bundled"
ASK = [{"role": "user", "content": "Tell me of the king."}]
PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"], "additionalProperties": False}
GREEDY = {"temperature": 0}  # the package does not send it by itself
DIGIT = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["x"]}
TOOLS = [{"name": "find", "input_schema": DIGIT}]


def refused(kind, status, call, word=""):
    try:
        call()
    except kind as e:
        body = e.body or {}
        return e.status_code == status and body.get("type") == "error" and body["error"]["type"] \
            and word in body["error"]["message"]
    return False


def messages(client):
    r = client.messages.create(model=MODEL, max_tokens=30, messages=ASK, system="Be brief.")
    check(r.type == "message" and r.role == "assistant" and r.id.startswith("msg_") and r.model == MODEL
          and r.stop_reason in ("end_turn", "max_tokens") and r.content[0].type == "text"
          and r.content[0].text, "messages: a whole answer", f"{r}")
    n = client.messages.count_tokens(model=MODEL, messages=ASK, system="Be brief.").input_tokens
    u = r.usage
    check(n == u.input_tokens + (u.cache_read_input_tokens or 0) and u.output_tokens > 0,
          "messages: count_tokens is what the prompt has", f"{n} {u}")
    parts = [{"role": "user", "content": [{"type": "text", "text": "Tell me "},
                                          {"type": "text", "text": "of the king."}]},
             {"role": "assistant", "content": [{"type": "text", "text": "He"}]}]
    r = client.messages.create(model=MODEL, max_tokens=8, messages=parts)
    check(r.content[0].text, "messages: blocks, and an answer that is begun", f"{r}")
    r = client.messages.create(model=MODEL, max_tokens=3, messages=ASK, extra_body=GREEDY)
    check(r.stop_reason == "max_tokens" and r.usage.output_tokens == 3, "messages: max_tokens", f"{r}")
    r = client.messages.create(model=MODEL, max_tokens=400, messages=ASK, stop_sequences=["o"],
                               extra_body=GREEDY)
    check(r.stop_reason == "stop_sequence" and r.stop_sequence == "o" and all("o" not in b.text for b in r.content),
          "messages: a stop sequence", f"{r}")


def streams(client):
    with client.messages.stream(model=MODEL, max_tokens=30, messages=ASK, extra_body=GREEDY) as s:
        kinds, text = [], ""
        for event in s:
            kinds.append(event.type)
            if event.type == "content_block_delta":
                text += event.delta.text
        final = s.get_final_message()
    check(kinds[0] == "message_start" and kinds[-1] == "message_stop" and "content_block_start" in kinds
          and kinds.count("content_block_delta") > 3, "streams: events in order", f"{kinds}")
    check(text and final.content[0].text == text and final.stop_reason and final.usage.output_tokens > 0,
          "streams: the text of the final message", f"{final}")


def tools(client):
    for choice in ({"type": "any"}, {"type": "tool", "name": "find"}):
        r = client.messages.create(model=MODEL, max_tokens=100, messages=ASK, tools=TOOLS, tool_choice=choice)
        call = r.content[-1]
        check(r.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "find",
              f"tools: a forced call, {choice['type']}", f"{r}")
        jsonschema.validate(call.input, DIGIT)
    with client.messages.stream(model=MODEL, max_tokens=100, messages=ASK, tools=TOOLS,
                                tool_choice={"type": "any"}) as s:
        final = s.get_final_message()
    check(final.stop_reason == "tool_use", "tools: a call in a stream", f"{final}")
    jsonschema.validate(final.content[-1].input, DIGIT)
    more = ASK + [{"role": "assistant", "content": [{"type": "tool_use", "id": call.id, "name": call.name,
                                                     "input": call.input}]},
                  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                                "content": "done"}]}]
    r = client.messages.create(model=MODEL, max_tokens=20, messages=more, tools=TOOLS)
    check(r.usage.output_tokens > 0, "tools: a result goes back", f"{r}")


def structured(client):
    r = client.messages.create(model=MODEL, max_tokens=200, messages=ASK, extra_body={
        "output_config": {"format": {"type": "json_schema", "schema": PERSON}}})
    jsonschema.validate(json.loads(r.content[0].text), PERSON)
    check(r.stop_reason == "end_turn", "structured: output_config.format", f"{r}")


def errors(client):
    bad, missing = anthropic.BadRequestError, anthropic.NotFoundError
    make = client.messages.create
    check(refused(missing, 404, lambda: make(model="nobody", max_tokens=1, messages=ASK), "nobody"),
          "errors: an unknown model")
    check(refused(bad, 400, lambda: make(model=MODEL, max_tokens=0, messages=ASK), "max_tokens"),
          "errors: max_tokens")
    check(refused(bad, 400, lambda: make(model=MODEL, max_tokens=1, messages=[
        {"role": "user", "content": [{"type": "document", "source": {}}]}]), "document"),
        "errors: a block that is not supported")
    check(refused(bad, 400, lambda: make(model=MODEL, max_tokens=1, messages=ASK, tools=[
        {"type": "web_search_20250305", "name": "web_search"}]), "web_search"), "errors: a tool of the service")


def keys():
    with Server("--api-key", "tml-right") as server:
        right = anthropic.Anthropic(base_url=server.url, api_key="tml-right", max_retries=0)
        wrong = anthropic.Anthropic(base_url=server.url, api_key="tml-wrong", max_retries=0)
        model = "test/tiny"
        check(not refused(anthropic.AuthenticationError, 401, lambda: right.messages.count_tokens(
            model=model, messages=ASK)), "keys: the right one")
        check(refused(anthropic.AuthenticationError, 401, lambda: wrong.messages.count_tokens(
            model=model, messages=ASK)), "keys: a wrong one")


model = os.path.abspath("models/tiny")
with Server("--model", f"{MODEL}={model}") as server:
    client = anthropic.Anthropic(base_url=server.url, api_key="tml-x", max_retries=0)
    attempt("messages", lambda: messages(client))
    attempt("streams", lambda: streams(client))
    attempt("tools", lambda: tools(client))
    attempt("structured", lambda: structured(client))
    attempt("errors", lambda: errors(client))
    other = anthropic.Anthropic(base_url=server.url + "/anthropic/api", api_key="tml-x", max_retries=0)
    attempt("the hosted prefix", lambda: other.messages.count_tokens(model=MODEL, messages=ASK).input_tokens > 0)
attempt("keys", keys)
sys.stdout.flush()
done()
