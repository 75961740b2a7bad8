//! Text features that one device makes for all that share the images of a request.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::files::Array;
use crate::pipeline::residency::prefetch::CHECK_EVERY;
use crate::pipeline::residency::prompt_cache::{FeatureCache, PromptKey};
use crate::stage::Caller;
use crate::text_encoder::PromptTokens;

/// The most bytes of the host. The features of one prompt take 16 MB in the 4B model.
const MOST_BYTES: u64 = 1 << 30;

/// Who makes the text features of a session.
#[derive(Clone)]
pub(crate) enum TextSource {
    /// Its device.
    Own,
    /// Its device, for others too.
    First(Arc<SharedText>),
    /// Another device.
    Other(Arc<SharedText>),
}

impl TextSource {
    /// Whether another device runs the text encoder.
    pub(crate) fn is_other(&self) -> bool {
        matches!(self, Self::Other(_))
    }

    /// Has others make their own, where its device was to make them and has not.
    pub(crate) fn abandon(&self) {
        if let Self::First(shared) = self {
            shared.abandon();
        }
    }
}

/// The features of the prompts that were shared last, [tokens, features] each, on the host.
pub(crate) struct HostPrompts(Mutex<FeatureCache<Arc<Array>>>);

impl Default for HostPrompts {
    fn default() -> Self {
        Self(Mutex::new(FeatureCache::new(MOST_BYTES)))
    }
}

impl HostPrompts {
    fn prompts(&self) -> MutexGuard<'_, FeatureCache<Arc<Array>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The features of a prompt, which `make` makes where they are not cached.
    ///
    /// Errors as `make`.
    fn get(&self, tokens: &PromptTokens, make: impl FnOnce() -> Result<Array>) -> Result<Arc<Array>> {
        let key = PromptKey::of(tokens);
        let cached = self.prompts().get(&key).map(Arc::clone);
        if let Some(cached) = cached {
            return Ok(cached);
        }
        let made = Arc::new(make()?);
        self.prompts().insert(key, Arc::clone(&made), size_of_val(&*made.values) as u64);
        Ok(made)
    }
}

/// The text features of a request, once the first device has made them.
pub(crate) struct SharedText {
    state: Mutex<State>,
    changed: Condvar,
    cache: Arc<HostPrompts>,
}

enum State {
    Awaited,
    /// Of each prompt.
    Made(Vec<Arc<Array>>),
    /// The first device will not make them.
    Abandoned,
}

impl SharedText {
    pub(crate) fn new(cache: &Arc<HostPrompts>) -> Self {
        Self { state: Mutex::new(State::Awaited), changed: Condvar::new(), cache: Arc::clone(cache) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, to: State) {
        let mut state = self.state();
        if matches!(*state, State::Awaited) {
            *state = to;
            self.changed.notify_all();
        }
    }

    /// Gives other devices the features of prompts, by their tokens. `download` returns those of
    /// one, [tokens, features], by its place; it is not asked for what is cached on the host.
    ///
    /// Errors as `download`.
    pub(crate) fn give<'a>(
        &self,
        prompts: impl Iterator<Item = &'a PromptTokens>,
        download: impl Fn(usize) -> Result<Array>,
    ) -> Result<()> {
        if !matches!(*self.state(), State::Awaited) {
            return Ok(());
        }
        let features = prompts.enumerate().map(|(place, tokens)| self.cache.get(tokens, || download(place)));
        self.settle(State::Made(features.collect::<Result<_>>()?));
        Ok(())
    }

    /// The first device gives no features, unless it has: others make their own.
    pub(crate) fn abandon(&self) {
        self.settle(State::Abandoned);
    }

    /// Waits for the features of each prompt; `None` where the first device makes none.
    ///
    /// Errors when the caller cancels.
    pub(crate) fn wait(&self, caller: &Caller<'_>) -> Result<Option<Vec<Arc<Array>>>> {
        let mut state = self.state();
        loop {
            match &*state {
                State::Made(features) => return Ok(Some(features.clone())),
                State::Abandoned => return Ok(None),
                State::Awaited => caller.check()?,
            }
            state = self.changed.wait_timeout(state, CHECK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::stage::CancelFlag;

    fn array(value: f32) -> Array {
        Array { shape: vec![1, 1], values: vec![value] }
    }

    fn tokens(id: u32) -> PromptTokens {
        PromptTokens { ids: vec![id], real: 1, truncated: 0, cut_at: 0, padding: crate::text_encoder::Padding::Counted }
    }

    /// What a session gets that waits, and is cancelled where `cancels`.
    fn waited(shared: &SharedText, cancels: bool) -> Result<Option<Vec<f32>>> {
        let (cancel, report) = (CancelFlag::default(), &mut |_| {});
        if cancels {
            cancel.cancel();
        }
        let features = shared.wait(&Caller::new(report, &cancel))?;
        Ok(features.map(|features| features.iter().map(|array| array.values[0]).collect()))
    }

    #[test]
    fn features_are_downloaded_once_and_given_to_all() {
        let cache = Arc::default();
        let prompts = [tokens(1), tokens(2)];
        let shared = SharedText::new(&cache);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waited(&shared, false).unwrap());
            shared.give(prompts.iter(), |place| Ok(array(place as f32))).unwrap();
            assert_eq!(waiting.join().unwrap(), Some(vec![0.0, 1.0]));
        });
        shared.abandon();
        assert_eq!(waited(&shared, false).unwrap(), Some(vec![0.0, 1.0]));
        let again = SharedText::new(&cache);
        again.give(prompts.iter().rev(), |_| panic!("they are cached")).unwrap();
        assert_eq!(waited(&again, false).unwrap(), Some(vec![1.0, 0.0]));
    }

    #[test]
    fn what_is_not_made_is_not_waited_for() {
        let shared = SharedText::new(&Arc::default());
        let failed = shared.give([tokens(1)].iter(), |_| Err(Error::new("out of memory")));
        assert_eq!(failed.unwrap_err().what(), "out of memory");
        assert_eq!(waited(&shared, true).unwrap_err().kind(), ErrorKind::Cancelled);
        shared.abandon();
        assert_eq!(waited(&shared, false).unwrap(), None);
    }
}
