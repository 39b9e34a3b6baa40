"""Live pages while somebody decides: what is done is what was asked, and what was chosen stays chosen."""

from __future__ import annotations

from playwright.async_api import expect

from everwork.core.outcome import Complete
from everwork.core.states import State
from tests.browser.watching import Visitor
from tests.factories import a_dead_letter, a_new_job, a_pending_job, activated
from tests.server.whole import Whole


async def test_a_job_that_ends_while_its_question_is_open_is_not_hit_by_another_deed(
    operator: Visitor, whole: Whole
) -> None:
    engine = whole.service._engine
    job = await a_pending_job(engine, type="question")
    page = await operator.go(f"/ui/jobs/{job.key}")
    await page.get_by_role("button", name="Cancel", exact=True).click()
    question = page.locator("dialog#confirm[open]")
    await expect(question).to_contain_text(f"Cancel job {job.key}")
    await activated(engine, job)
    await engine.settle([Complete(job.key, 1)])
    await expect(page.locator("#pulse")).to_contain_text("Paused")  # The page knows, and has not moved.
    await question.locator("[data-yes]").click()
    await expect(page.locator(".said.bad")).to_contain_text("completed")
    assert (await whole.job(job.key)).state is State.COMPLETED


async def test_rows_that_are_selected_stay_while_new_jobs_come(operator: Visitor, whole: Whole) -> None:
    engine = whole.service._engine
    job = await a_dead_letter(engine, type="chosen")
    page = await operator.go("/ui/jobs?type=chosen")
    box = page.locator(f"tr[data-key='{job.key}'] input[data-pick]")
    await box.check()
    await engine.create([a_new_job(type="chosen") for _ in range(60)])
    await expect(page.locator("#pulse")).to_contain_text("Paused")
    await expect(box).to_be_checked()
    await box.click()
    await expect(box).to_have_count(0)


async def test_what_was_chosen_beside_a_deed_is_what_is_done_after_its_question(
    operator: Visitor, whole: Whole
) -> None:
    await a_pending_job(whole.service._engine, type="slow-bank")
    page = await operator.go("/ui/type?name=slow-bank")
    await page.locator("#breaker-seconds").select_option("3600")
    await page.get_by_role("button", name="Open the breaker").click()
    await page.locator("dialog#confirm[open] [data-yes]").click()
    await expect(page.locator(".said.good")).to_contain_text("open for 1 h")
