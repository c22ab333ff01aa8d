package main

import (
	"context"
	"log/slog"
)

// clientHandler passes on client-go's messages, warnings and errors, but not its details:
// klog's V(1) and above become slog's debug level. At each start client-go has a line of
// detail for each of its feature gates. Nothing in them is about this node.
type clientHandler struct{ slog.Handler }

// Enabled is part of slog.Handler.
func (h clientHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo && h.Handler.Enabled(ctx, level)
}

// WithAttrs is part of slog.Handler.
func (h clientHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return clientHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup is part of slog.Handler.
func (h clientHandler) WithGroup(name string) slog.Handler {
	return clientHandler{h.Handler.WithGroup(name)}
}
