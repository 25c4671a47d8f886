//! Lists as streams of messages.
//!
//! Invariant: each item is in exactly one message; no message is empty, and none is longer than
//! [`BATCH`] unless a single item is.
//! Failure: none; the list is complete before the first message.

use prost::Message;
use tonic::codegen::BoxStream;

/// Length of the items of one message, in bytes: a quarter of what gRPC clients accept by default.
const BATCH: usize = 1 << 20;

/// The messages of a list.
pub(super) fn batches<T, M>(items: Vec<T>, message: fn(Vec<T>) -> M) -> BoxStream<M>
where
    T: Message + Send + 'static,
    M: Send + 'static,
{
    let batches = split(items).into_iter().map(message).map(Ok);
    Box::pin(tokio_stream::iter(batches.collect::<Vec<_>>()))
}

fn split<T: Message>(items: Vec<T>) -> Vec<Vec<T>> {
    let mut batches: Vec<Vec<T>> = Vec::new();
    let mut length = 0;
    for item in items {
        let own = item.encoded_len();
        match batches.last_mut() {
            Some(batch) if length + own <= BATCH => {
                length += own;
                batch.push(item);
            }
            _ => {
                length = own;
                batches.push(vec![item]);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(length: usize) -> String {
        "x".repeat(length)
    }

    fn lengths(batches: &[Vec<String>]) -> Vec<usize> {
        batches.iter().map(Vec::len).collect()
    }

    #[test]
    fn an_empty_list_is_a_stream_without_messages() {
        assert!(split::<String>(Vec::new()).is_empty());
    }

    #[test]
    fn each_item_is_in_one_message_of_bounded_length() {
        let small = vec![text(300_000); 10];
        assert_eq!(lengths(&split(small)), [3, 3, 3, 1]);
        let mixed = vec![text(10), text(2 << 20), text(10), text(10)];
        let batches = split(mixed.clone());
        assert_eq!(lengths(&batches), [1, 1, 2]);
        assert_eq!(batches.concat(), mixed);
    }
}
