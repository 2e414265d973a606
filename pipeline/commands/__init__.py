"""Commands by what they are about, one thin function a command; heavy imports stand inside."""
