"""The calls that steer the server: a misspelt or mistyped field is refused, and nothing is done."""

import shutil

import pytest

from sage_jax.rollout import control_requests as control
from sage_jax.rollout.http_requests import BadRequestError
from tests.rollout.conftest import call_app


def test_what_the_calls_say():
    full = {"model_path": "m", "weight_version": "ab12-3", "abort_all_requests": True}
    assert control.read_update(full) == ("m", "ab12-3", True)
    assert control.read_update({"model_path": "m"}) == ("m", None, False)
    assert [control.read_pause({"mode": mode}) for mode in control.PAUSE_MODES] == list(control.PAUSE_MODES)
    assert control.read_pause({}) == "abort"
    assert [control.read_abort(body) for body in ({"rid": "a"}, {"abort_all": True})] == ["a", None]
    assert control.read_abort({"rid": "a", "abort_all": False}) == "a"
    control.read_resume({})
    control.read_flush({})


def test_fields_of_sglang_that_change_nothing_are_taken():
    flags = dict.fromkeys(("is_async", "torch_empty_cache", "keep_pause", "recapture_cuda_graph"), False)
    rest = {"load_format": "auto", "flush_cache": False, "token_step": 7, "manifest": None, "rid": None}
    assert control.read_update({"model_path": "m", **flags, **rest}) == ("m", None, False)
    control.read_resume({"torch_empty_cache": True})
    control.read_abort({"rid": "a", "abort_message": None, "finished_reason": None})
    control.read_flush({"timeout_s": None})


@pytest.mark.parametrize(
    ("read", "body", "word"),
    [
        (
            control.read_update,
            {"model_path": "m", "weight_verison": "9", "nonsense": 1},
            "'nonsense', 'weight_verison'",
        ),
        (control.read_update, {"model_path": "m", "abort_all_requests": "false"}, "abort_all_requests"),
        (control.read_update, {"model_path": "m", "is_async": 1}, "is_async"),
        (control.read_update, {"model_path": "m", "load_format": "dummy"}, "load_format"),
        (control.read_update, {"model_path": "m", "weight_version": 9}, "weight_version"),
        (control.read_update, {"model_path": "m", "token_step": "9"}, "token_step"),
        (control.read_update, {"model_path": ""}, "model_path"),
        (control.read_pause, {"mod": "in_place"}, "'mod'"),
        (control.read_pause, {"mode": ["abort"]}, "mode"),
        (control.read_pause, {"mode": None}, "mode"),
        (control.read_pause, [1], "object"),
        (control.read_resume, {"torch_empty_cache": "no"}, "torch_empty_cache"),
        (control.read_resume, {"mode": "abort"}, "'mode'"),
        (control.read_abort, {}, "rid"),
        (control.read_abort, {"rid": 5}, "rid"),
        (control.read_abort, {"rid": 5, "abort_all": True}, "rid"),
        (control.read_abort, {"abort_all": "false"}, "abort_all"),
        (control.read_abort, {"rid": "a", "abortall": True}, "'abortall'"),
        (control.read_abort, {"rid": "a", "abort_message": "enough"}, "abort_message"),
        (control.read_flush, {"now": True}, "'now'"),
    ],
)
def test_what_is_refused_by_its_name(read, body, word):
    with pytest.raises(BadRequestError, match=word) as caught:
        read(body)
    assert caught.value.status == 400


def test_a_refused_call_changes_nothing(speaker):
    service = speaker()
    update = {"model_path": str(service.folder), "weight_verison": "9"}
    calls = [
        ("/pause_generation", {"mod": "in_place"}),
        ("/update_weights_from_disk", update),
        ("/update_weights_from_disk", {**update, "abort_all_requests": "false"}),
    ]
    answers = call_app(service, *(("POST", path, {"json": body}) for path, body in calls))
    assert [answer.status_code for answer in answers] == [400, 400, 400]
    assert (service.weight_version, service.server_info()["is_paused"]) == ("default", False)


@pytest.mark.parametrize("version", ["ab12-3", "", 'ä " \n', "9" * 300])
def test_any_text_names_a_version(speaker, version):
    service = speaker()
    update = {"model_path": str(service.folder), "weight_version": version}
    turn = {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}}
    requests = [("POST", "/update_weights_from_disk", {"json": update}), ("POST", "/generate", {"json": turn})]
    updated, turned, told = call_app(service, *requests, ("GET", "/model_info", {}))
    assert updated.json()["success"]
    assert (turned.json()["meta_info"]["weight_version"], told.json()["weight_version"]) == (version, version)


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": "{}"},
        {"config.json": "[1]"},
        {"config.json": "{"},
        {"config.json": '{"model_type": 5}'},
        {"model.safetensors": ""},
        {"model.safetensors": "no tensors"},
    ],
    ids=str,
)
def test_a_damaged_folder_is_a_400_and_the_old_weights_stay(speaker, tmp_path, files):
    service = speaker()
    shutil.copytree(service.folder, tmp_path, dirs_exist_ok=True)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    body = {"model_path": str(tmp_path), "weight_version": "2"}
    turn = {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}}
    requests = [("/update_weights_from_disk", body), ("/generate", turn)]
    updated, turned = call_app(service, *(("POST", path, {"json": body}) for path, body in requests))
    assert (updated.status_code, updated.json()["success"]) == (400, False)
    assert updated.json()["error"]["message"] == updated.json()["message"]
    assert turned.json()["meta_info"]["weight_version"] == "default"
