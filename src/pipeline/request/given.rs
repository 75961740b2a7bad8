//! Values of a request that replace values of the model. They are named as the likely cause if no image results.

use std::path::Path;

use crate::error::{Error, Field};
use crate::files::adapter::AdapterUse;
use crate::pipeline::request::embeddings::Embeddings;
use crate::pipeline::request::fields::Request;
use crate::pipeline::request::latents::Latents;

/// The values that a request passes in.
pub(crate) struct Given {
    start: Option<(Latents, Field)>,
    embeddings: Option<Embeddings>,
    adapters: Vec<AdapterUse>,
}

impl Given {
    pub(crate) fn from_request(request: &Request) -> Self {
        Self {
            start: request.start().map(|(start, field)| (start.clone(), field)),
            embeddings: request.embeddings.clone(),
            adapters: request.adapters.iter().filter(|used| used.strength != 0.0).cloned().collect(),
        }
    }

    /// Returns the error `what` of a model whose weights are valid, with the passed values as the cause; `None` if
    /// there are none.
    pub(crate) fn blame(&self, what: &str) -> Option<Error> {
        let (mut causes, mut places, mut fields) = (Vec::new(), Vec::new(), Vec::new());
        let mut add = |cause: String, field: Field, path: Option<&Path>| {
            causes.push(cause);
            places.push(path.map_or(format!("{field:#}"), |path| format!("{field:#} {}", path.display())));
            fields.push(field);
        };
        if let Some((start, field)) = &self.start {
            add(format!("{} of up to {:e}", field.key(), largest(start.values())), *field, start.path());
        }
        if let Some(embeddings) = &self.embeddings {
            let negative = embeddings.negative().map_or(0.0, |negative| largest(&negative.values));
            let most = largest(&embeddings.prompt().values).max(negative);
            add(format!("text features of up to {most:e}"), Field::Embeddings, embeddings.path());
        }
        for AdapterUse { adapter, strength, blocks } in &self.adapters {
            add(format!("an adapter at strength {strength}{}", blocks.suffix()), Field::Adapters, Some(adapter.path()));
        }
        fields.first().map(|field| {
            Error::new(format!("{what}, from {}", causes.join(" and ")))
                .at(places.join(", "))
                .for_field(*field)
                .hint("pass other values, or leave them out: the weights of the model are intact")
        })
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}
