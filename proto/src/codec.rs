//! The codec of all services here: protobuf with small buffers.
//!
//! A client keeps a buffer for each open stream, and the scheduler has a stream open to every node. With tonic's usual
//! 8 KiB each, 500 nodes cost 4 MiB that are never used.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::ProstCodec;

/// What a buffer has at first, in bytes. It grows with the message.
const INITIAL: usize = 512;
/// From how many bytes on an encoded message is handed to the connection: tonic's usual value.
const YIELD_AT: usize = 32 * 1024;

/// Encodes `T` and decodes `U`.
#[derive(Clone, Debug)]
pub struct SmallBufferCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallBufferCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallBufferCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = <ProstCodec<T, U> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(INITIAL, YIELD_AT))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(INITIAL, YIELD_AT))
    }
}
