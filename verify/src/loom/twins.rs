//! The broken twins.
