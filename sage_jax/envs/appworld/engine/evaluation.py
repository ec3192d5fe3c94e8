"""Checks one task of our world: the answer, each change that was asked for, and that nothing else changed.

Copied into the ground truth of every task and run by the engine's evaluator, which has no data but the database before
and after. `private_data.changes` holds the changes as `sage_jax.envs.appworld.twin.base.Change` describes them.
"""

import json

# Set by the engine itself whenever a row is touched or a session is opened.
UNWATCHED_FIELDS = {"updated_at", "created_at", "last_logged_in", "added_at", "order_index"}
UNWATCHED_MODELS = {"supervisor.Task", "admin.PaymentCard"}


def evaluate(test, models, public_data, private_data, main_user, ground_truth_answer):
    """Runs the tests; `requirements` names them in this order."""
    changes = list(private_data["changes"])
    task = models.end.supervisor.Task.find_one()
    with test("assert the task was completed."):
        assert task.status == "success"
    with test("assert the answer is right."):
        test.answer(json.loads(task.answer) if isinstance(task.answer, str) else task.answer, ground_truth_answer)
    found = _found(models)
    left = list(found)
    for number, change in enumerate(changes):
        with test(f"assert change {number + 1} was made."):
            matching = [entry for entry in left if _fits(entry, change, models, main_user)]
            assert matching, f"{change['kind']} {change['model']} {dict(change['where'])}"
            left.remove(matching[0])
    with test("assert nothing else changed."):
        assert not left, str([(entry["model"], entry["kind"]) for entry in left])
    return test


def requirements(changes):
    """Returns the tests as the engine lists them; a test that an idle agent fails is "no_op_fail"."""
    asked = [f"assert change {number + 1} was made." for number in range(len(changes))]
    must = ["assert the task was completed.", "assert the answer is right.", *asked]
    labels = [(name, "no_op_fail") for name in must] + [("assert nothing else changed.", "no_op_pass")]
    return [{"requirement": name, "label": label} for name, label in labels]


def _found(models):
    """Returns every change between the two states as {"model", "kind", "row", "old", "fields"}."""
    found = []
    for model in sorted(models.changed_model_names()):
        if model in UNWATCHED_MODELS:
            continue
        added, updated, removed = models.changed_records(model)
        for row in added:
            found.append({"model": model, "kind": "added", "row": row, "old": None, "fields": set()})
        for row in removed:
            found.append({"model": model, "kind": "removed", "row": row, "old": row, "fields": set()})
        for row in updated:
            fields = models.changed_field_names(model, row.id) - UNWATCHED_FIELDS
            app, name = model.split(".")
            old = models.start[app][name].by_id(row.id)
            if fields:
                found.append({"model": model, "kind": "updated", "row": row, "old": old, "fields": fields})
    return found


def _fits(entry, change, models, main_user):
    """Whether a change that was found is the one that was asked for."""
    if (entry["model"], entry["kind"]) != (change["model"], change["kind"]):
        return False
    told = entry["row"] if change["kind"] == "added" else entry["old"]
    if not all(getattr(told, name) == _value(value, models, main_user) for name, value in change["where"].items()):
        return False
    if not _owned(told, entry["model"], models, main_user):
        return False
    if change["kind"] != "updated":
        return True
    return entry["fields"] == set(change["to"]) and all(getattr(entry["row"], n) == v for n, v in change["to"].items())


def _value(value, models, main_user):
    """Returns a field's value; {"model", field: text} stands for the id of the user's (or shared) row with the text."""
    if not isinstance(value, dict):
        return value
    app, name = value["model"].split(".")
    fields = {key: text for key, text in value.items() if key != "model"}
    rows = models.start[app][name].find_all(**fields)
    return [row.id for row in rows if _owned(row, value["model"], models, main_user)][0]


def _owned(row, model, models, main_user):
    """Whether the row is the main user's own, where rows have owners."""
    if not hasattr(row, "user_id"):
        return True
    app = model.split(".")[0]
    key = "phone_number" if app == "phone" else "email"
    return row.user_id == models.start[app].User.find_one(**{key: getattr(main_user, key)}).id
