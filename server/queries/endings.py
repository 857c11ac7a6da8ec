"""What cut responses already hold: answers that were rewarded elsewhere for the same prompt."""

from __future__ import annotations

from typing import NamedTuple

from server.queries.view import RunView

MOST_ROWS = 20_000
"""Rewarded responses that are looked at, newest first."""

_MARKED = r"(\\boxed\{[^{}]+\}|<answer>.{1,200}?</answer>|####\s*\S+)"
"""Marks by which final answers are extracted (MATH, tagged answers, GSM8K)."""


class Complete(NamedTuple):
    """Cut responses whose prompt has a rewarded answer in the window, and those among them that hold one already."""

    compared: int
    complete: int


def complete_before_cut(view: RunView, first: int, last: int, look_back: int) -> Complete:
    """Cut responses of steps first..last against rewarded, self-ended ones to the same prompts from `look_back` steps before on.

    A cut response is complete if it begins with the whole text of a rewarded one, or holds the same marked final answer.
    """
    parameters: dict[str, object] = {
        "run": view.run.run_id, "attempt": view.attempt, "first": first, "last": min(last, view.step), "early": first - look_back,
        "marked": _MARKED, "most": MOST_ROWS,
    }  # fmt: skip
    row = view.data.store.rows(
        """WITH t AS (
               SELECT t.attempt, step, n, hash(coalesce(prompt, prompt_messages::VARCHAR)) AS asked, response, reward, finish_reason
               FROM trajectory t WHERE run_id = $run AND step BETWEEN $early AND $last AND attempt <= $attempt
                    AND coalesce(split, 'train') = 'train' AND response IS NOT NULL
                    AND coalesce(prompt, prompt_messages::VARCHAR) IS NOT NULL),
           edges AS (SELECT min(reward) AS low, max(reward) AS high FROM t),
           good AS (
               SELECT DISTINCT asked, text, nullif(regexp_extract(text, $marked), '') AS answer FROM (
                   SELECT asked, rtrim(response) AS text FROM t, edges
                   WHERE finish_reason = 'stop' AND high > low AND reward > (low + high) / 2 ORDER BY step DESC LIMIT $most)
               WHERE length(text) >= 2),
           cut AS (SELECT * FROM t WHERE finish_reason = 'length' AND step >= $first),
           pairs AS (
               SELECT cut.attempt, cut.step, cut.n, bool_or(starts_with(cut.response, good.text)
                      OR (good.answer IS NOT NULL AND contains(cut.response, good.answer))) AS complete
               FROM cut JOIN good USING (asked) GROUP BY ALL)
           SELECT count(*), count(*) FILTER (complete) FROM pairs""",
        parameters,
    )[0]
    return Complete(int(row[0]), int(row[1]))
