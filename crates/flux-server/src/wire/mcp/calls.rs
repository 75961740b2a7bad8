//! Calls in progress over HTTP, by session and request, so that clients can cancel them.
//!
//! The server keeps no other state of a session. A session ID is returned by `initialize`, and any ID that was not
//! ended is accepted.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;

/// Max remembered ended sessions.
const MAX_ENDED: usize = 1000;

/// The fields of a message that the server needs.
#[derive(Default, Deserialize)]
pub struct Head {
    #[serde(default)]
    pub method: String,
    #[serde(default)]
    pub id: Value,
    #[serde(default)]
    params: Params,
}

#[derive(Default, Deserialize)]
struct Params {
    #[serde(default, rename = "requestId")]
    request_id: Value,
}

impl Head {
    /// Parses a body. The head is empty if the body is not a message.
    pub fn read(body: &Bytes) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }

    /// Returns the ID of the call that the message cancels.
    pub fn cancelled(&self) -> Option<&Value> {
        (self.method == "notifications/cancelled").then_some(&self.params.request_id)
    }
}

/// The client and the session of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub owner: String,
    pub session: Option<String>,
}

/// The calls in progress. See the [module](self).
#[derive(Default)]
pub struct Calls(Mutex<State>);

#[derive(Default)]
struct State {
    open: Vec<Open>,
    started: u64,
    ended: VecDeque<Caller>,
}

struct Open {
    number: u64,
    caller: Caller,
    id: Value,
    end: Arc<Notify>,
}

/// A call in progress.
pub struct Call {
    calls: Arc<Calls>,
    number: u64,
    end: Arc<Notify>,
}

impl Call {
    /// Waits until the client cancels the call.
    pub async fn cancelled(&self) {
        self.end.notified().await;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.calls.0.lock().open.retain(|open| open.number != self.number);
    }
}

impl Calls {
    pub fn start(self: &Arc<Self>, caller: Caller, id: Value) -> Call {
        let end = Arc::new(Notify::new());
        let mut state = self.0.lock();
        state.started += 1;
        let number = state.started;
        state.open.push(Open { number, caller, id, end: Arc::clone(&end) });
        drop(state);
        Call { calls: Arc::clone(self), number, end }
    }

    /// Cancels a call. Without a session, it must be the client's only call with this ID.
    pub fn cancel(&self, caller: &Caller, id: &Value) {
        let state = self.0.lock();
        let meant: Vec<_> = state.open.iter().filter(|open| open.caller == *caller && open.id == *id).collect();
        if caller.session.is_some() || meant.len() == 1 {
            meant.iter().for_each(|open| open.end.notify_one());
        }
    }

    /// Ends a session, and cancels its calls.
    pub fn end(&self, caller: &Caller) {
        let mut state = self.0.lock();
        state.open.iter().filter(|open| open.caller == *caller).for_each(|open| open.end.notify_one());
        if state.ended.len() >= MAX_ENDED {
            state.ended.pop_front();
        }
        state.ended.push_back(caller.clone());
    }

    /// Returns `true` if a session was ended.
    pub fn is_ended(&self, caller: &Caller) -> bool {
        caller.session.is_some() && self.0.lock().ended.contains(caller)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use serde_json::json;

    use super::*;

    async fn is_cancelled(call: &Call) -> bool {
        let mut end = pin!(call.cancelled());
        poll_fn(|context| Poll::Ready(end.as_mut().poll(context).is_ready())).await
    }

    #[tokio::test]
    async fn a_call_is_ended_by_its_own_client_and_session_alone() {
        let caller = |owner: &str, session: Option<&str>| Caller {
            owner: owner.to_string(),
            session: session.map(str::to_string),
        };
        let calls = Arc::new(Calls::default());
        let (a, b) = (caller("me", Some("a")), caller("me", Some("b")));
        let [first, second, other] = [&a, &b, &caller("you", Some("a"))].map(|of| calls.start(of.clone(), json!(1)));
        calls.cancel(&a, &json!("1"));
        assert!(!is_cancelled(&first).await, "ids of different types differ");
        calls.cancel(&a, &json!(1));
        assert!(is_cancelled(&first).await && !is_cancelled(&second).await && !is_cancelled(&other).await);
        calls.end(&b);
        assert!(is_cancelled(&second).await && calls.is_ended(&b) && !calls.is_ended(&a));
        let none = caller("me", None);
        let [one, two] = [(), ()].map(|()| calls.start(none.clone(), json!(1)));
        calls.cancel(&none, &json!(1));
        assert!(!is_cancelled(&one).await, "the id is ambiguous");
        drop(two);
        calls.cancel(&none, &json!(1));
        assert!(is_cancelled(&one).await);
        drop((first, second, other, one));
        assert!(calls.0.lock().open.is_empty());
    }
}
