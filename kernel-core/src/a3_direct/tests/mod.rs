mod corrupt;
mod rounds;
