# requirements: sdk-newest
"""The calls that came after SDK 0.25, made by the newest SDK known when this was written and by libtinker:
see sequence.py.  What may differ besides: the version that each announces, and members that newer SDKs
send although they say nothing (DEFAULTS)."""

import os
import sys
import warnings
from datetime import date

import sequence
import tinker
from _recorder import SESSION, STATE, Recorder
from tinker import types

EXTERNAL = STATE.replace("/weights/", "/external_weights/")
# Said by the newer SDK in every request; what is absent means the same.
DEFAULTS = {"topk_sample_logprobs": 0, "prompt_alt_tokens_k": 0, "record_stability_info": False, "prompt_logprobs": False,
            "topk_prompt_logprobs": 0, "optimizer_config": {"type": "adamw"}, "user_metadata": {}}


def plain(body):
    if isinstance(body, list):
        return [plain(v) for v in body]
    if not isinstance(body, dict):
        return body
    return {k: plain(v) for k, v in body.items()
            if k != "sdk_version" and not (k in DEFAULTS and v == DEFAULTS[k])}


sequence.plain = plain
sequence.COMPARED = tuple(h for h in sequence.COMPARED if h != "x-stainless-package-version")


class Newest(sequence.Sdk):
    def save_state_metadata(self):
        return self.training.save_state("three", user_metadata={"k": "v", "ä": "ö"}).result().path

    def save_for_sampler_metadata(self):
        return self.training.save_weights_for_sampler("four", user_metadata={"k": "v"}).result().path

    def save_external(self):
        return self.training.save_weights_external("hf", ttl_seconds=3600).result().path

    def save_external_encrypted(self):
        return self.training.save_weights_external("enc", age_encryption_recipients=["age1x"]).result().path

    def spans(self):
        d = sequence.datum(1, 3).with_provenance(
            model_input=[types.PromptProvenanceSpan(sequence_id="s", offset=0, length=2),
                         types.SampledProvenanceSpan(sequence_id="s", offset=0, length=1)],
            loss_fn_inputs=[types.PromptProvenanceSpan(sequence_id="s", offset=1, length=1),
                            types.SampledProvenanceSpan(sequence_id="s", offset=0, length=2)])
        return sequence.told_pass(self.training.forward_backward([d], "cross_entropy").result())

    def loss_texts(self):
        return sequence.told_pass(self.training.forward_backward(
            sequence.batch(1, 3), "cross_entropy", {"number": 0.5, "text": "words"}).result())

    def record_stability(self):
        self.sampler = self.service.create_sampling_client(base_model="base/model", record_stability_info=True)
        return sequence.told_sample(self.sampler.sample(sequence.prompt(7, 3), 1, types.SamplingParams()).result())

    def external_urls(self):
        self.rest.get_external_weights_urls(EXTERNAL).result()
        return ""

    def copy(self):
        return self.rest.copy_weights(STATE, "prj-2", ttl_seconds=3600).result() \
            + self.rest.copy_weights(STATE, "prj-2", weights_access_token="tml-other").result()

    def search_sessions(self):
        self.rest.search_sessions(types.SessionSearchRequest()).result()
        self.rest.search_sessions(types.SessionSearchRequest(
            project_ids=["p"], user_metadata={"k": "v"}, display_name="night", limit=20,
            owner=types.AccessibleSearchOwner())).result()
        return ""

    def storage(self):
        self.rest.get_current_checkpoint_storage_usage().result()
        self.rest.get_current_checkpoint_storage_usage("p 1").result()
        return ""

    def audit_types(self):
        for kind in ("all", "checkpoints", "projects", "teams", "organizations"):
            self.rest.get_audit_log(event_type=kind, day=date(2026, 8, 1)).result()
        return ""

    def finish_session(self):
        self.service.close("errored", detail="boom").result()
        return ""


sequence.SIDES = (Newest, sequence.Ours)
SCENARIOS = [
    ("training, since 0.26", {}, ["create_lora", "save_state_metadata", "save_for_sampler_metadata", "save_external",
                                  "save_external_encrypted", "spans", "loss_texts"]),
    ("sampling, since 0.26", {}, ["create_sampler", "sample", "record_stability"]),
    ("rest, since 0.26", {}, ["external_urls", "copy", "search_sessions", "storage", "audit_types"]),
    ("the end, since 0.27", {}, ["create_lora", "finish_session"]),
]

warnings.simplefilter("ignore")
os.environ.update({"TINKER_API_KEY": "tml-key", "TINKER_TELEMETRY": "1", "CLOUDFLARE_ACCESS_CLIENT_ID": "cf"})
for name in ("TINKER_TAGS", "TINKER_PROJECT_ID", "TINKER_LOG"):
    os.environ.pop(name, None)
recorder = Recorder()
steps = sum(sequence.compare(*s, recorder) for s in SCENARIOS)
print(f"1..{sequence.count}")
print(f"# score of the same calls: {sequence.count - sequence.failed} of {sequence.count} alike, {steps} steps")
sys.exit(1 if sequence.failed else 0)
