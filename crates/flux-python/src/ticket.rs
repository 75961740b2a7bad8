//! A submitted job: its events, and its images.

use std::task::Poll;

use flux::engine::InOrder;
use flux::{CancelFlag, Event};
use parking_lot::Mutex;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::errors::OrRaise;
use crate::picture::{Files, Picture, Tensor};
use crate::wait::POLL;

/// A submitted job. Dropping it cancels the job.
#[pyclass(frozen, module = "flux._flux")]
pub struct Ticket {
    events: Mutex<InOrder>,
    cancel: CancelFlag,
    files: Files,
}

impl Ticket {
    pub fn new(events: InOrder, cancel: CancelFlag, files: Files) -> Self {
        Self { events: Mutex::new(events), cancel, files }
    }

    /// Waits for the next event without the GIL. Runs Python's signal handlers between short waits; if one raises,
    /// cancels the job.
    fn receive(&self, py: Python<'_>) -> PyResult<Option<Event>> {
        loop {
            let wait = || self.events.lock().next_within(POLL);
            let next = py.detach(wait);
            if let Err(raised) = py.check_signals() {
                self.cancel.cancel();
                return Err(raised);
            }
            match next {
                Poll::Ready(event) => return event.transpose().or_raise(py),
                Poll::Pending => {}
            }
        }
    }
}

#[pymethods]
impl Ticket {
    /// Cancels the job. Its next event is an error of the kind `cancelled`.
    fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Waits for the next event: a tuple that begins with the name of the event. `None` after the end.
    fn next_event(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.receive(py)?.map_or(Ok(None), |event| self.tuple(py, event))
    }

    /// Waits for all images, each with its final latents if they were requested.
    fn wait(&self, py: Python<'_>) -> PyResult<Vec<(Picture, Option<Tensor>)>> {
        let mut images = Vec::new();
        while let Some(event) = self.receive(py)? {
            if let Event::Image { image, latents, .. } = event {
                let latents = latents.map(|latents| Tensor::from(latents.to_array()));
                images.push((Picture::from_image(*image, &self.files), latents));
            }
        }
        Ok(images)
    }
}

impl Ticket {
    fn tuple(&self, py: Python<'_>, event: Event) -> PyResult<Option<Py<PyAny>>> {
        let tuple = match event {
            Event::Queued(ahead) => ("queued", ahead).into_py_any(py),
            Event::Started { images, batch, remark } => {
                ("started", images.start, images.end, batch, remark).into_py_any(py)
            }
            Event::Progress(progress) => {
                ("progress", progress.stage.name(), progress.done, progress.total).into_py_any(py)
            }
            Event::Preview { place, steps: [done, steps], image } => {
                ("preview", place, done, steps, Picture::from_preview(image)).into_py_any(py)
            }
            Event::Embeddings(features) => {
                let negative = features.negative().cloned().map(Tensor::from);
                ("features", Tensor::from(features.prompt().clone()), negative).into_py_any(py)
            }
            Event::Image { place, image, latents } => {
                let latents = latents.map(|latents| Tensor::from(latents.to_array()));
                ("image", place, Picture::from_image(*image, &self.files), latents).into_py_any(py)
            }
            Event::Finished { images, device, .. } => {
                ("finished", images.start, images.end, device.to_string()).into_py_any(py)
            }
            // An event of a newer library.
            _ => ("other",).into_py_any(py),
        };
        tuple.map(Some)
    }
}
