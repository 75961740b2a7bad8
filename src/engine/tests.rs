//! Tests with devices that fail, panic, hang or have little memory: stand-ins that generate no images and do what a
//! test specifies. Engines on real devices are tested in tests/engine.rs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::running::RunningBatch;
use super::*;
use crate::backend::cpu::{Cpu, Precision};
use crate::error::{Error, ErrorKind};
use crate::files::ModelFiles;
use crate::pipeline::{Decoded, Timings};
use crate::stage::Stage;

type Make = Box<dyn Fn(&RunningBatch) -> Result<()> + Send + Sync>;

struct StandIn {
    name: &'static str,
    make: Make,
    late: Arc<AtomicBool>,
}

impl Executor for StandIn {
    fn name(&self) -> &str {
        self.name
    }

    fn is_group(&self) -> bool {
        false
    }

    fn make(&self, making: &Arc<RunningBatch>) -> Result<()> {
        (self.make)(making)
    }

    fn is_late(&self) -> bool {
        self.late.load(Ordering::Relaxed)
    }
}

fn device(name: &'static str, make: impl Fn(&RunningBatch) -> Result<()> + Send + Sync + 'static) -> Arc<dyn Executor> {
    Arc::new(StandIn { name, make: Box::new(make), late: Arc::default() })
}

fn engine(devices: Vec<Arc<dyn Executor>>) -> Engine {
    let model = OpenModel::open(&ModelFiles::open("models/tiny".as_ref()).unwrap()).unwrap();
    let pool = Replicas::new(vec![("cpu".to_string(), Cpu::new(Precision::F32))], model).unwrap();
    Engine::with(Arc::new(pool), devices).unwrap()
}

fn request(seed: u64) -> Request {
    Request { width: Some(32), height: Some(32), steps: Some(1), ..Request::new("a cat", seed) }
}

/// Sends the first `room` images of a batch, identified by their seeds.
fn send_images(making: &RunningBatch, room: usize) {
    let seeds: Vec<u64> = making.batch.lock().requests.iter().map(|request| request.seed).collect();
    let count = seeds.len().min(room);
    making.start(count, None);
    for seed in seeds.into_iter().take(count) {
        let mut plan = Plan::with_size(32, 32);
        plan.seed = seed;
        let image = Decoded { rgb: Vec::new(), plan };
        making.image(image.into_parts(), None, None);
    }
    making.finish(&Arc::from("a device"), &Timings::default());
}

/// Returns the seeds of the images of a job, and its error.
fn seeds(events: impl Iterator<Item = Result<Event>>) -> (Vec<u64>, Option<Error>) {
    let (mut seeds, mut error) = (Vec::new(), None);
    for event in events {
        match event {
            Ok(Event::Image { image, .. }) => seeds.push(image.plan.seed),
            Ok(_) => {}
            Err(e) => error = Some(e),
        }
    }
    (seeds, error)
}

/// A device with room for one image and one with room for three generate all images, each once, whichever is slower.
#[test]
fn devices_of_unequal_memory_make_what_they_can() {
    for slow in [0, 1] {
        let with_room = |number: usize, room: usize| {
            device(["a", "b"][number], move |making| {
                send_images(making, room);
                std::thread::sleep(Duration::from_millis(if number == slow { 3 } else { 0 }));
                Ok(())
            })
        };
        let engine = engine(vec![with_room(0, 1), with_room(1, 3)]);
        let (mut made, error) = seeds(engine.submit(Job::new(request(0), 19)).unwrap());
        made.sort_unstable();
        assert_eq!((made, error.map(|e| e.to_string())), (Vec::from_iter(0..19), None));
        assert_eq!(engine.stats(), EngineStats { devices: 2, waiting: 0, running: 0, made: 19 });
    }
}

#[test]
fn images_come_in_the_order_of_seeds_whichever_device_is_faster() {
    let engine = engine(vec![
        device("slow", |making| {
            std::thread::sleep(Duration::from_millis(20));
            send_images(making, 8);
            Ok(())
        }),
        device("fast", |making| {
            send_images(making, 8);
            Ok(())
        }),
    ]);
    let (made, error) = seeds(engine.submit(Job::new(request(1), 40)).unwrap().in_order());
    assert_eq!((made, error.is_none()), (Vec::from_iter(1..41), true));
}

#[test]
fn an_error_ends_its_job_and_names_the_device_and_the_engine_goes_on() {
    let fails = |making: &RunningBatch| making.batch.lock().requests.iter().any(|request| request.seed >= 1000);
    let make = move |making: &RunningBatch| {
        if fails(making) {
            return Err(Error::new("out of memory").hint("use less"));
        }
        send_images(making, 8);
        Ok(())
    };
    let engine = engine(vec![device("a", make), device("b", make)]);
    let (made, error) = seeds(engine.submit(Job::new(request(990), 1000)).unwrap().in_order());
    let error = error.expect("one of its images fails");
    assert!(["a: out of memory", "b: out of memory"].contains(&error.what()), "{error}");
    assert!(error.to_string().contains("use less"));
    assert!(made.len() < 100 && made.iter().zip(990..).all(|(seed, expected)| *seed == expected), "{made:?}");
    let (made, error) = seeds(engine.submit(Job::new(request(1), 3)).unwrap().in_order());
    assert_eq!((made, error.is_none()), (vec![1, 2, 3], true));
}

#[test]
fn the_error_of_one_job_is_not_that_of_another_in_the_same_batch() {
    let (release, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let engine = engine(vec![device("a", move |making| {
        let seeds: Vec<u64> = making.batch.lock().requests.iter().map(|request| request.seed).collect();
        if seeds == [0] {
            wait.lock().recv().unwrap();
        }
        if seeds.contains(&7) {
            return Err(Error::new("its values are not numbers"));
        }
        send_images(making, 8);
        Ok(())
    })]);
    let first = engine.submit(Job::new(request(0), 1)).unwrap();
    while engine.stats().running == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let tickets: Vec<Ticket> =
        [6, 7, 8].map(|seed| engine.submit(Job::new(request(seed), 1)).unwrap()).into_iter().collect();
    release.send(()).unwrap();
    assert_eq!(seeds(first).0, [0]);
    let ends: Vec<_> = tickets.into_iter().map(|ticket| seeds(ticket.in_order())).collect();
    let told: Vec<_> = ends.iter().map(|(made, error)| (made.as_slice(), error.as_ref().map(Error::what))).collect();
    assert_eq!(told, [(&[6][..], None), (&[][..], Some("its values are not numbers")), (&[8][..], None)]);
}

#[test]
fn a_panic_is_an_error_of_its_job() {
    let engine = engine(vec![device("a", |making| {
        assert!(making.batch.lock().requests[0].seed != 5, "a panic of a test");
        send_images(making, 8);
        Ok(())
    })]);
    let (made, error) = seeds(engine.submit(Job::new(request(5), 1)).unwrap());
    assert!(made.is_empty() && error.is_some_and(|e| e.what().contains("panicked")));
    assert_eq!(seeds(engine.submit(Job::new(request(6), 1)).unwrap()).0, [6]);
}

#[test]
fn a_device_that_does_not_answer_is_not_waited_for() {
    let late = Arc::new(AtomicBool::new(true));
    let make: Make = Box::new(|making| {
        send_images(making, 8);
        Ok(())
    });
    let hung = StandIn { name: "hung", make, late: Arc::clone(&late) };
    let made_by_b = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&made_by_b);
    let other = device("b", move |making| {
        counted.fetch_add(1, Ordering::Relaxed);
        send_images(making, 8);
        Ok(())
    });
    let engine = engine(vec![Arc::new(hung), other]);
    assert_eq!(seeds(engine.submit(Job::new(request(0), 4)).unwrap().in_order()).0, [0, 1, 2, 3]);
    assert_eq!(made_by_b.load(Ordering::Relaxed), 2, "both batches");
    late.store(false, Ordering::Relaxed);
}

#[test]
fn a_job_that_is_cancelled_ends_and_others_go_on() {
    let (begun, begins) = mpsc::channel();
    let begun = Mutex::new(begun);
    let engine = engine(vec![device("a", move |making| {
        let (cancel, seed) = {
            let batch = making.batch.lock();
            (batch.cancel.clone(), batch.requests[0].seed)
        };
        begun.lock().send(seed).unwrap();
        if seed < 100 {
            loop {
                cancel.check()?;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        send_images(making, 8);
        Ok(())
    })]);
    // Jobs in progress and waiting jobs are cancelled, by flag, by ticket and by dropping the ticket.
    let flag = CancelFlag::default();
    let running = engine.submit(Job::new(request(1), 1)).unwrap();
    assert_eq!(begins.recv(), Ok(1));
    let by_flag = engine.submit(Job { cancel: flag.clone(), ..Job::new(request(2), 1) }).unwrap();
    let waiting = engine.submit(Job::new(request(3), 1)).unwrap();
    let dropped = engine.submit(Job::new(request(4), 1)).unwrap();
    let last = engine.submit(Job::new(request(100), 1)).unwrap();
    flag.cancel();
    waiting.cancel();
    drop(dropped);
    let cancelled = |ticket: Ticket| seeds(ticket).1.map(|error| error.kind());
    assert_eq!(cancelled(by_flag), Some(ErrorKind::Cancelled));
    assert_eq!(cancelled(waiting), Some(ErrorKind::Cancelled));
    running.cancel();
    assert_eq!(cancelled(running), Some(ErrorKind::Cancelled));
    assert_eq!(seeds(last).0, [100]);
    assert_eq!(begins.try_iter().collect::<Vec<_>>(), [100], "the waiting jobs were not started");
}

#[test]
fn flags_of_jobs_in_one_batch_are_heard_while_it_tells_of_progress() {
    let (release, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let engine = engine(vec![device("a", move |making| {
        let (cancel, seed) = {
            let batch = making.batch.lock();
            (batch.cancel.clone(), batch.requests[0].seed)
        };
        if seed == 0 {
            wait.lock().recv().unwrap();
            send_images(making, 8);
            return Ok(());
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            making.progress(Progress { stage: Stage::Denoise, done: 0, total: 1 });
            cancel.check()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Error::new("the job was not cancelled"))
    })]);
    let first = engine.submit(Job::new(request(0), 1)).unwrap();
    while engine.stats().running == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let flags = [CancelFlag::default(), CancelFlag::default()];
    let job = |(seed, flag): (u64, &CancelFlag)| Job { cancel: flag.clone(), ..Job::new(request(seed), 1) };
    let tickets: Vec<Ticket> = (1..).zip(&flags).map(|named| engine.submit(job(named)).unwrap()).collect();
    release.send(()).unwrap();
    assert_eq!(seeds(first).0, [0]);
    while engine.stats().running != 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    flags.iter().for_each(CancelFlag::cancel);
    std::thread::scope(|scope| {
        let ends: Vec<_> = tickets.into_iter().map(|ticket| scope.spawn(|| seeds(ticket).1)).collect();
        for end in ends {
            assert_eq!(end.join().unwrap().map(|error| error.kind()), Some(ErrorKind::Cancelled));
        }
    });
}

#[test]
fn jobs_of_a_higher_priority_begin_first_and_one_of_another_shape_is_no_part_of_a_batch() {
    let (release, wait) = mpsc::channel::<()>();
    let (told, batches) = mpsc::channel();
    let (wait, told) = (Mutex::new(wait), Mutex::new(told));
    let engine = engine(vec![device("a", move |making| {
        let seeds: Vec<u64> = making.batch.lock().requests.iter().map(|request| request.seed).collect();
        if seeds == [0] {
            wait.lock().recv().unwrap();
        }
        told.lock().send(seeds).unwrap();
        send_images(making, 8);
        Ok(())
    })]);
    let first = engine.submit(Job::new(request(0), 1)).unwrap();
    while engine.stats().running == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let jobs = [
        Job::new(request(1), 1),
        Job::new(Request { height: Some(64), ..request(2) }, 1),
        Job::new(Request { prompt: "a dog".to_string(), ..request(3) }, 2),
        Job { priority: Priority::High, ..Job::new(Request { steps: Some(2), ..request(5) }, 1) },
        Job::new(request(6), 6),
        Job::new(request(12), 5),
    ];
    let mut tickets: Vec<Ticket> = jobs.map(|job| engine.submit(job).unwrap()).into_iter().collect();
    let ahead: Vec<_> = tickets.iter_mut().map(|ticket| ticket.next().unwrap().unwrap()).collect();
    let ahead: Vec<_> =
        ahead.iter().filter_map(|event| if let Event::Queued(ahead) = event { Some(*ahead) } else { None }).collect();
    assert_eq!(ahead, [0, 1, 2, 0, 5, 11]);
    release.send(()).unwrap();
    drop(first);
    assert!(tickets.into_iter().all(|ticket| seeds(ticket).1.is_none()));
    let made: Vec<Vec<u64>> = batches.try_iter().collect();
    assert_eq!(made, [vec![0], vec![5], vec![1, 3, 4, 12, 13, 14, 15, 16], vec![2], vec![6, 7, 8, 9, 10, 11]]);
}

#[test]
fn no_device_runs_far_ahead_of_the_caller() {
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&begun);
    let engine = engine(vec![device("a", move |making| {
        counted.fetch_add(1, Ordering::Relaxed);
        send_images(making, 1);
        Ok(())
    })]);
    let mut ticket = engine.submit(Job::new(request(0), 100)).unwrap();
    let settled = || {
        std::thread::sleep(Duration::from_millis(30));
        begun.load(Ordering::Relaxed)
    };
    assert_eq!(settled(), 2);
    ticket.by_ref().find(|event| matches!(event, Ok(Event::Finished { .. })));
    assert_eq!(settled(), 3);
    assert_eq!(seeds(ticket).0.len(), 99);
}

#[test]
fn an_engine_that_ends_finishes_what_it_has_or_cancels_it() {
    let engine = engine(vec![device("a", |making| {
        std::thread::sleep(Duration::from_millis(5));
        making.batch.lock().cancel.check()?;
        send_images(making, 1);
        Ok(())
    })]);
    let short = engine.submit(Job::new(request(1), 2)).unwrap();
    assert!(engine.drain(Duration::from_secs(60)));
    assert_eq!(seeds(short).0, [1, 2]);
    assert!(engine.submit(Job::new(request(1), 1)).is_err());
    let engine = self::engine(vec![device("a", |making| {
        while making.batch.lock().cancel.check().is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Error::cancelled())
    })]);
    let endless = engine.submit(Job::new(request(1), 100)).unwrap();
    assert!(!engine.drain(Duration::from_millis(10)));
    drop(engine);
    assert_eq!(seeds(endless).1.map(|error| error.kind()), Some(ErrorKind::Cancelled));
}
