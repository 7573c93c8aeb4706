//! Futures that are dropped halfway.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Polls a future at most a number of times, and then drops it: see [`cut`].
#[derive(Debug)]
pub struct Cut<F> {
    future: Pin<Box<F>>,
    polls: usize,
}

impl<F: Future> Future for Cut<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls == 0 {
            return Poll::Ready(None);
        }
        self.polls -= 1;
        match self.future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Polls `future` at most `polls` times, and then drops it. Returns `None` if it did not complete
/// by then.
pub fn cut<F: Future>(future: F, polls: usize) -> Cut<F> {
    Cut {
        future: Box::pin(future),
        polls,
    }
}
