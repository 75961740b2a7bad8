//! Tests of admission control.

use std::sync::mpsc;

use super::*;

/// Starts work that runs until something is sent.
async fn blocked(permit: Arc<Permit>, pixels: u64) -> (mpsc::Sender<()>, tokio::task::JoinHandle<Result<()>>) {
    let (end, ends) = mpsc::channel();
    let (started, starts) = oneshot::channel();
    let task = tokio::spawn(async move {
        let estimate = Estimate::scale(pixels);
        let work = move |_: &CancelFlag| {
            let _ = started.send(());
            let _ = ends.recv();
            Ok(())
        };
        permit.run(estimate, &CancelFlag::default(), work).await
    });
    let _ = tokio::time::timeout(Duration::from_millis(200), starts).await;
    (end, task)
}

#[tokio::test]
async fn a_client_that_fills_its_threads_delays_no_other_client() {
    let admission = Admission::new(1 << 20, 1);
    let greedy = Arc::new(admission.permit("greedy"));
    let mut held = Vec::new();
    for _ in 0..2 * admission.threads {
        held.push(blocked(Arc::clone(&greedy), SMALL + 1).await);
    }
    for pixels in [SMALL + 1, SMALL] {
        let other = admission.permit("other");
        let cancel = CancelFlag::default();
        let done = other.run(Estimate::scale(pixels), &cancel, |_| Ok(7));
        assert_eq!(tokio::time::timeout(Duration::from_secs(10), done).await.unwrap().unwrap(), 7);
    }
    let cancel = CancelFlag::default();
    let small = greedy.run(Estimate::scale(1), &cancel, |_| Ok(8));
    assert_eq!(tokio::time::timeout(Duration::from_secs(10), small).await.unwrap().unwrap(), 8);
    drop(greedy);
    for (end, task) in held {
        drop(end);
        task.await.unwrap().unwrap();
    }
    let state = admission.state.lock();
    assert_eq!((state.owners.len(), state.tasks.len(), state.cost, state.kept), (0, 0, 0, 0));
}

#[tokio::test]
async fn a_request_that_is_given_up_ends_its_work_and_a_waiting_one_never_starts() {
    let admission = Admission::new(1 << 20, 1);
    let permit = Arc::new(admission.permit("a"));
    let (told, hears) = mpsc::channel();
    let endless = {
        let permit = Arc::clone(&permit);
        tokio::spawn(async move {
            let work = move |cancel: &CancelFlag| {
                let _ = told.send("started");
                while cancel.check().is_ok() {
                    thread::sleep(Duration::from_millis(1));
                }
                let _ = told.send("ended");
                Ok(())
            };
            permit.run(Estimate::default(), &CancelFlag::default(), work).await
        })
    };
    let hears = tokio::task::spawn_blocking(move || {
        assert_eq!(hears.recv(), Ok("started"));
        hears
    });
    let hears = hears.await.unwrap();
    endless.abort();
    let ended = tokio::task::spawn_blocking(move || hears.recv_timeout(Duration::from_secs(10)));
    assert_eq!(ended.await.unwrap(), Ok("ended"));
    let mut held = Vec::new();
    for _ in 0..admission.owner_threads {
        held.push(blocked(Arc::clone(&permit), SMALL + 1).await);
    }
    let cancel = CancelFlag::default();
    let waiting = permit.run(Estimate::scale(SMALL + 1), &cancel, |_| Ok(()));
    assert!(tokio::time::timeout(Duration::from_millis(20), waiting).await.is_err());
    assert_eq!(admission.state.lock().tasks.len(), held.len());
    let cancel = CancelFlag::default();
    cancel.cancel();
    let cancelled = permit.run(Estimate::default(), &cancel, |_| -> Result<()> { panic!("it never starts") }).await;
    assert!(cancelled.unwrap_err().is_cancelled());
    held.into_iter().for_each(|(end, _)| drop(end));
}

#[tokio::test]
async fn a_server_that_goes_down_ends_work_for_jobs_and_finishes_answers() {
    let admission = Admission::new(1 << 20, 1);
    let permit = Arc::new(admission.permit("a"));
    let (end, running) = blocked(Arc::clone(&permit), SMALL + 1).await;
    let mut others = Vec::new();
    for _ in 0..admission.threads {
        others.push(blocked(Arc::clone(&permit), SMALL + 1).await);
    }
    admission.close();
    let (ends, waiting): (Vec<_>, Vec<_>) = others.into_iter().unzip();
    let last = waiting.into_iter().next_back().unwrap();
    assert_eq!(last.await.unwrap().unwrap_err().code, "draining");
    let refused = permit.run(Estimate::default(), &CancelFlag::default(), |_| Ok(())).await;
    assert_eq!(refused.unwrap_err().code, "draining");
    drop((end, ends));
    let _ = running.await;
    assert_eq!(permit.answer(Estimate::default(), |_| Ok(5)).await.unwrap(), 5);
}

#[tokio::test]
async fn work_is_bounded_by_request_and_by_client() {
    let admission = Admission::new(1 << 20, 1);
    let permit = admission.permit("a");
    permit.count(Estimate::decode([1 << 14, 1 << 14]), "image").unwrap();
    permit.count(Estimate::scale(768 << 20), "image").unwrap();
    let error = permit.count(Estimate::bytes(8), "image").unwrap_err();
    assert_eq!((error.status.as_u16(), error.code, error.param.as_deref()), (400, "too_much_work", Some("image")));
    let most = Estimate::scale(MAX_OWNER);
    let enter = |owner: &str| admission.enter(&owner.into(), most, (Purpose::Job, CancelFlag::default()));
    let (turn, _started) = enter("a").unwrap();
    let error = enter("a").err().unwrap();
    assert_eq!((error.status.as_u16(), error.code), (429, "too_many_waiting"));
    assert!(error.retry_after().is_some());
    let others: Vec<_> = ["b", "c", "d"].into_iter().map(|owner| enter(owner).unwrap()).collect();
    assert_eq!(enter("e").err().unwrap().code, "queue_full");
    drop((turn, others));
    assert!(enter("a").is_ok());
}

#[tokio::test]
async fn a_panic_of_work_is_an_error_of_its_request_alone() {
    let admission = Admission::new(1 << 20, 1);
    let permit = admission.permit("a");
    let cancel = CancelFlag::default();
    let panics = permit.run(Estimate::default(), &cancel, |_| -> Result<()> { panic!("in a test") });
    assert_eq!(panics.await.unwrap_err().code, "internal_error");
    assert_eq!(permit.answer(Estimate::default(), |_| Ok(1)).await.unwrap(), 1);
}

#[test]
fn bytes_are_returned_and_no_owner_takes_all_of_them() {
    let admission = Admission::new(100, 10);
    let (first, second) = (admission.permit("a"), admission.permit("a"));
    first.keep(45).unwrap();
    assert_eq!(second.keep(10).unwrap_err().code, "too_many_waiting");
    drop(second);
    let other = admission.permit("b");
    other.keep(50).unwrap();
    assert_eq!(admission.permit("c").keep(10).unwrap_err().code, "queue_full");
    drop(first);
    admission.permit("a").keep(50).unwrap();
    drop(other);
    let state = admission.state.lock();
    assert_eq!((state.kept, state.owners.len()), (0, 0));
    drop(state);
    assert!(Admission::new(100, 200).permit("a").keep(100).is_ok(), "a request of the max size fits");
}
