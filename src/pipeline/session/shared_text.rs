//! Text features that one device computes for all devices that share the images of a request.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::error::Result;
use crate::files::Array;
use crate::pipeline::residency::prefetch::CHECK_EVERY;
use crate::pipeline::residency::prompt_cache::{FeatureCache, PromptKey};
use crate::stage::Caller;
use crate::text_encoder::PromptTokens;

/// Maximum bytes on the host. The features of one prompt take 16 MB in the 4B model.
const MAX_BYTES: u64 = 1 << 30;

/// The source of a session's text features.
#[derive(Clone)]
pub(crate) enum TextSource {
    /// The session's device.
    Own,
    /// The session's device, which also shares them with other devices.
    First(Arc<SharedText>),
    /// Another device.
    Other(Arc<SharedText>),
}

impl TextSource {
    /// Returns `true` if another device runs the text encoder.
    pub(crate) fn is_other(&self) -> bool {
        matches!(self, Self::Other(_))
    }

    /// Lets other devices compute their own features, if this session was to share them and has not.
    pub(crate) fn abandon(&self) {
        if let Self::First(shared) = self {
            shared.abandon();
        }
    }
}

/// The most recently shared features of prompts, [tokens, features] each, on the host.
pub(crate) struct HostPrompts(Mutex<FeatureCache<Arc<Array>>>);

impl Default for HostPrompts {
    fn default() -> Self {
        Self(Mutex::new(FeatureCache::new(MAX_BYTES)))
    }
}

impl HostPrompts {
    /// Returns the features of a prompt, from the cache or from `make`.
    ///
    /// Errors as `make`.
    fn get(&self, tokens: &PromptTokens, make: impl FnOnce() -> Result<Array>) -> Result<Arc<Array>> {
        let key = PromptKey::new(tokens);
        let cached = self.0.lock().get(&key).map(Arc::clone);
        if let Some(cached) = cached {
            return Ok(cached);
        }
        let made = Arc::new(make()?);
        self.0.lock().insert(key, Arc::clone(&made), size_of_val(&*made.values) as u64);
        Ok(made)
    }
}

/// The text features of a request, once the first device has computed them.
pub(crate) struct SharedText {
    state: Mutex<State>,
    changed: Condvar,
    cache: Arc<HostPrompts>,
}

enum State {
    Awaited,
    /// The features of each prompt.
    Made(Vec<Arc<Array>>),
    /// The first device will not compute them.
    Abandoned,
}

impl SharedText {
    pub(crate) fn new(cache: &Arc<HostPrompts>) -> Self {
        Self { state: Mutex::new(State::Awaited), changed: Condvar::new(), cache: Arc::clone(cache) }
    }

    fn settle(&self, to: State) {
        let mut state = self.state.lock();
        if matches!(*state, State::Awaited) {
            *state = to;
            self.changed.notify_all();
        }
    }

    /// Shares the features of prompts with other devices. `download` returns the features of a prompt by its index,
    /// [tokens, features]; it is not called for features that are cached on the host.
    ///
    /// Errors as `download`.
    pub(crate) fn give<'a>(
        &self,
        prompts: impl Iterator<Item = &'a PromptTokens>,
        download: impl Fn(usize) -> Result<Array>,
    ) -> Result<()> {
        if !matches!(*self.state.lock(), State::Awaited) {
            return Ok(());
        }
        let features = prompts.enumerate().map(|(place, tokens)| self.cache.get(tokens, || download(place)));
        self.settle(State::Made(features.collect::<Result<_>>()?));
        Ok(())
    }

    /// Marks the features as abandoned, unless they are already shared: other devices compute their own.
    pub(crate) fn abandon(&self) {
        self.settle(State::Abandoned);
    }

    /// Waits for the features of each prompt; `None` if the first device does not compute them.
    ///
    /// Errors if the caller cancels.
    pub(crate) fn wait(&self, caller: &Caller<'_>) -> Result<Option<Vec<Arc<Array>>>> {
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::Made(features) => return Ok(Some(features.clone())),
                State::Abandoned => return Ok(None),
                State::Awaited => caller.check()?,
            }
            self.changed.wait_for(&mut state, CHECK_EVERY);
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

    /// Returns the features that a waiting session gets; it is cancelled if `cancels`.
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
