//! What a request gives in place of what a model makes by itself: named where the image that comes of it is none.

use std::path::Path;

use super::{AdapterUse, Embeddings, Latents, Request};
use crate::error::Error;

/// Numbers that a request gives.
pub(super) struct Given {
    start: Option<(Latents, &'static str)>,
    embeddings: Option<Embeddings>,
    adapters: Vec<AdapterUse>,
}

impl Given {
    pub(super) fn of(request: &Request) -> Self {
        Self {
            start: request.start().map(|(start, flag)| (start.clone(), flag)),
            embeddings: request.embeddings.clone(),
            adapters: request.adapters.iter().filter(|used| used.strength != 0.0).cloned().collect(),
        }
    }

    /// The error `what` of a model whose weights are whole: it is about what was given, if anything was.
    pub(super) fn blame(&self, what: &str) -> Option<Error> {
        let (mut causes, mut places) = (Vec::new(), Vec::new());
        let mut add = |cause: String, flag: &str, path: Option<&Path>| {
            causes.push(cause);
            places.push(path.map_or(flag.to_string(), |path| format!("{flag} {}", path.display())));
        };
        if let Some((start, flag)) = &self.start {
            let kind = flag.trim_start_matches('-');
            add(format!("{kind} of up to {:e}", largest(start.values())), flag, start.source().path());
        }
        if let Some(embeddings) = &self.embeddings {
            let negative = embeddings.negative().map_or(0.0, |negative| largest(&negative.values));
            let most = largest(&embeddings.prompt().values).max(negative);
            add(format!("text features of up to {most:e}"), "--embeddings", embeddings.source().path());
        }
        for AdapterUse { adapter, strength } in &self.adapters {
            add(format!("an adapter at strength {strength}"), "--lora", Some(adapter.path()));
        }
        (!causes.is_empty()).then(|| {
            Error::new(format!("{what}, from {}", causes.join(" and ")))
                .at(places.join(", "))
                .hint("give other values, or leave them out: the weights of the model are whole")
        })
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}
