//! What was payload two operators ago and could pass for a flag now.
