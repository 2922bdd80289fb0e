"""What is found out before anything expensive: facts of every rank -> tries between machines -> findings."""
