//! A fabric around another one: calls that a middleware does not override go through unchanged.

use super::{Capabilities, Fabric, Fault};
use crate::place::Place;
use crate::units::RankId;
use core::cell::Cell;

/// Says in the implementation of a [`Middleware`](crate::fabric::middleware::Middleware) which of its fields is the inner
/// fabric, and of what type that is; and, if it ends in `its capabilities`, that both support the same calls.
#[macro_export]
macro_rules! around {
    ($field:tt: $inner:ty) => {
        type Inner = $inner;

        #[inline]
        fn inner(&self) -> &$inner {
            &self.$field
        }

        #[inline]
        fn inner_mut(&mut self) -> &mut $inner {
            &mut self.$field
        }
    };
    ($field:tt: $inner:ty, its capabilities) => {
        $crate::around! { $field: $inner }

        #[inline]
        fn capabilities(&self) -> $crate::fabric::Capabilities {
            self.$field.capabilities()
        }
    };
}

/// Declares the trait, with calls that by default are those of the inner fabric, and the fabric that each implementor is.
macro_rules! middleware {
    (
        reads { $($(#[$hint:meta])* fn $of:ident(&$own:ident $(, $with:ident: $is:ty)*) $(-> $seen:ty)?;)* }
        acts { $($(#[$hints:meta])* fn $act:ident(&mut $this:ident $(, $arg:ident: $type:ty)*) -> $done:ty;)* }
    ) => {
        /// A fabric that wraps another one and changes some of its calls. Every implementor is a [`Fabric`]; by default each
        /// method does what the inner fabric does.
        pub trait Middleware {
            /// The inner fabric.
            type Inner: Fabric + ?Sized;

            /// Returns the inner fabric, to read.
            fn inner(&self) -> &Self::Inner;

            /// Returns the inner fabric, to act.
            fn inner_mut(&mut self) -> &mut Self::Inner;

            /// Returns the calls that both fabrics support: usually those of the inner fabric. There is no default, since an
            /// implementor must decide on calls that the inner fabric would carry out and this one must not.
            fn capabilities(&self) -> Capabilities;

            /// Returns the rank of the inner fabric that [`Fabric::peer_bytes`] reads for `rank`.
            ///
            /// # Errors
            /// There is no such rank. The default never fails.
            #[inline]
            fn reached(&self, rank: RankId, _at: Place, _len: u64) -> Result<RankId, Fault> {
                Ok(rank)
            }

            $(
                #[doc = concat!("As [`Fabric::", stringify!($of), "`].")]
                $(#[$hint])*
                fn $of(&$own $(, $with: $is)*) $(-> $seen)? {
                    $own.inner().$of($($with),*)
                }
            )*

            $(
                #[doc = concat!("As [`Fabric::", stringify!($act), "`].")]
                $(#[$hints])*
                fn $act(&mut $this $(, $arg: $type)*) -> $done {
                    $this.inner_mut().$act($($arg),*)
                }
            )*
        }

        impl<M: Middleware> Fabric for M {
            #[inline]
            fn capabilities(&self) -> Capabilities {
                Middleware::capabilities(self)
            }

            #[inline]
            fn peer_bytes(&self, rank: RankId, at: Place, len: u64) -> Result<&[u8], Fault> {
                self.inner().peer_bytes(self.reached(rank, at, len)?, at, len)
            }

            $(
                $(#[$hint])*
                fn $of(&$own $(, $with: $is)*) $(-> $seen)? {
                    Middleware::$of($own $(, $with)*)
                }
            )*

            $(
                $(#[$hints])*
                fn $act(&mut $this $(, $arg: $type)*) -> $done {
                    Middleware::$act($this $(, $arg)*)
                }
            )*
        }
    };
}

middleware! {
    reads {
        #[inline]
        fn line(&self) -> u64;
        #[inline]
        fn observe(&self, at: Place) -> Result<u64, Fault>;
        #[inline]
        fn bytes(&self, at: Place, len: u64) -> Result<&[u8], Fault>;
        #[inline]
        fn lend(&self, output: Place, len: u64) -> Option<&[Cell<u8>]>;
        #[inline]
        fn prefetch(&self, bytes: &[u8]);
    }
    acts {
        #[inline]
        fn put(&mut self, to: RankId, at: Place, row: &[u8], tail: &[u8]) -> Result<(), Fault>;
        #[inline]
        fn publish(&mut self, to: RankId, at: Place, word: u64) -> Result<(), Fault>;
        #[inline]
        fn send(&mut self, to: RankId, at: Place, message: &[u8]) -> Result<(), Fault>;
        #[inline]
        fn quiet(&mut self) -> Result<bool, Fault>;
        #[inline]
        fn store(&mut self, at: Place, word: u64) -> Result<(), Fault>;
        #[inline]
        fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Fault>;
        #[inline(always)]
        fn deliver(&mut self, output: Place, from: Place, len: u64) -> Result<(), Fault>;
    }
}
