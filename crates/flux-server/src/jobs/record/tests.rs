//! Tests of the records of jobs.

use super::*;

fn made() -> Made {
    Made {
        file: Bytes::from_static(b"png"),
        seed: 1,
        width: 64,
        height: 64,
        recipe: Value::Null,
        parameters: String::new(),
        url: None,
    }
}

#[test]
fn it_is_done_with_its_last_image() {
    let record = JobRecord::sample(2);
    let waiting = record.result_bytes();
    record.push_event(JobEvent::Started { image: 0 });
    assert_eq!(record.status(), Status::Running);
    assert!(!record.made(1, made()));
    assert!(record.made(0, made()));
    assert_eq!(record.status(), Status::Done);
    assert_eq!(record.result_bytes() - waiting, 6 + 4 * size_of::<JobEvent>(), "two files and their events");
    assert!(!record.cancel() && !record.fail(ApiError::internal("x")), "the job has ended");
    assert_eq!(record.status(), Status::Done);
}

#[test]
fn what_is_left_of_it_has_no_images() {
    let record = JobRecord::sample(1);
    record.made(0, made());
    let rest = record.rest();
    let Snapshot { status, images, notes, .. } = rest.snapshot();
    assert_eq!((status, notes.len(), &rest.id, rest.created), (Status::Done, 1, &record.id, record.created));
    assert!(images[0].as_ref().is_some_and(|made| made.file.is_empty() && made.seed == 1));
    assert!(rest.events_from(0).is_empty());
}

#[tokio::test]
async fn a_job_is_taken_or_refused() {
    let [taken, refused, cancelled, failed] = [1; 4].map(JobRecord::sample);
    assert!(taken.is_reading());
    taken.take();
    refused.fail(ApiError::bad("invalid_image", "x"));
    cancelled.cancel();
    failed.take();
    failed.fail(ApiError::internal("x"));
    assert_eq!(refused.taken().await.unwrap_err().code, "invalid_image");
    for job in [taken, cancelled, failed] {
        assert!(job.taken().await.is_ok() && !job.is_reading());
    }
}

#[test]
fn notes_are_bounded() {
    let notes = bounded((0..10_000).map(|_| "x".repeat(10_000)).collect());
    assert_eq!((notes.len(), notes[MAX_NOTES].as_str()), (MAX_NOTES + 1, "9968 more notes"));
    assert!(notes.iter().all(|note| note.len() <= MAX_NOTE + 3));
}

#[test]
fn an_error_ends_it_once() {
    let record = JobRecord::sample(1);
    assert!(record.fail(ApiError::internal("broken")));
    assert!(record.cancel.check().is_err(), "no further image is generated");
    record.made(0, made());
    let Snapshot { status, error, images, .. } = record.snapshot();
    assert_eq!((status, error.unwrap().message.as_str(), images[0].is_none()), (Status::Failed, "broken", true));
    assert!(matches!(record.events_from(0)[..], [JobEvent::Queued, JobEvent::Failed(_)]));
}
