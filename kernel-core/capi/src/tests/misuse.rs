//! Calls that make no sense.
