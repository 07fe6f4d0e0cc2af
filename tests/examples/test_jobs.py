"""docs/jobs.md does what it says: every job runs as it stands there, and prints what the page shows."""

from pathlib import Path

import pytest

from benchmarks.jobs import PAGE, Job, JobFailed, jobs, run_job

FILES, *JOBS = jobs(PAGE.read_text(encoding="utf-8"))


def test_the_page_has_its_jobs_and_each_says_what_it_prints():
    assert [job.number for job in JOBS] == list(range(1, 21))
    assert all(job.title and job.blocks and job.expected for job in JOBS)
    assert max(job.lines for job in JOBS) <= 20


def test_a_job_that_fails_or_prints_something_else_is_noticed(tmp_path: Path):
    script = (("sh", "echo one\n"),)
    assert run_job(Job(1, "", script, ("one",)), tmp_path) == "one\n"
    with pytest.raises(JobFailed, match="did not print 'two'"):
        run_job(Job(1, "", script, ("two",)), tmp_path)
    with pytest.raises(JobFailed, match="ended with 3"):
        run_job(Job(1, "", (("sh", "exit 3\n"),), ()), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job.number}")
def test_the_job(job, tmp_path):
    run_job(FILES, tmp_path)
    run_job(job, tmp_path)
