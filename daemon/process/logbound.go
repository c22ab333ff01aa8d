package process

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// The log has at most logBurst lines of one message at once, and one more in each period after that: the last of the
// period, with the number of lines before it that were left out. client-go has a line for each request that fails, of
// which watch has already reported the first: of its lines there are fewer.
const (
	logBurst     = 100
	logPeriod    = 6 * time.Second
	clientBurst  = 4
	clientPeriod = time.Minute
	// maxLogKinds bounds the number of messages that are counted apart. Our
	// messages are constants; those of a library may be any text.
	maxLogKinds = 256
)

// boundedHandler passes on the lines that its logBounds let through.
type boundedHandler struct {
	slog.Handler
	bounds *logBounds
}

func newBoundedHandler(to slog.Handler, burst int, period time.Duration) boundedHandler {
	return boundedHandler{to, &logBounds{burst: burst, period: period, kinds: map[string]*logKind{}}}
}

// logBounds counts the lines of each message. It is safe for concurrent use.
type logBounds struct {
	burst  int
	period time.Duration
	// off lets every line through.
	off atomic.Bool

	mu    sync.Mutex
	kinds map[string]*logKind
}

// logKind counts the lines of one message.
type logKind struct {
	bucket *rate.Limiter
	// omitted counts the lines that were left out since the last logged one. The
	// newest of them waits until it may be logged.
	omitted int
	newest  slog.Record
	to      slog.Handler
}

// WithAttrs is part of slog.Handler.
func (h boundedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return boundedHandler{h.Handler.WithAttrs(attrs), h.bounds}
}

// WithGroup is part of slog.Handler.
func (h boundedHandler) WithGroup(name string) slog.Handler {
	return boundedHandler{h.Handler.WithGroup(name), h.bounds}
}

// Handle is part of slog.Handler.
func (h boundedHandler) Handle(ctx context.Context, r slog.Record) error {
	b := h.bounds
	if b.off.Load() {
		return h.Handler.Handle(ctx, r)
	}
	b.mu.Lock()
	k := b.kind(r.Message)
	now := time.Now()
	if k.omitted == 0 && k.bucket.AllowN(now, 1) {
		b.mu.Unlock()
		return h.Handler.Handle(ctx, r)
	}
	defer b.mu.Unlock()
	if k.omitted == 0 {
		time.AfterFunc(k.bucket.ReserveN(now, 1).DelayFrom(now), func() { b.logNewest(k) })
	}
	k.omitted++
	k.newest, k.to = r.Clone(), h.Handler
	return nil
}

// kind returns the counts of a message. Beyond maxLogKinds, all new messages share one.
func (b *logBounds) kind(message string) *logKind {
	k := b.kinds[message]
	if k == nil && len(b.kinds) >= maxLogKinds {
		message = ""
		k = b.kinds[message]
	}
	if k == nil {
		k = &logKind{bucket: rate.NewLimiter(rate.Every(b.period), b.burst)}
		b.kinds[message] = k
	}
	return k
}

// logNewest logs the line that waits, with the number of lines left out before it.
func (b *logBounds) logNewest(k *logKind) {
	b.mu.Lock()
	r, to, before := k.newest, k.to, k.omitted-1
	k.omitted, k.newest, k.to = 0, slog.Record{}, nil
	b.mu.Unlock()
	if before > 0 {
		r.AddAttrs(slog.Int("left_out", before))
	}
	_ = to.Handle(context.Background(), r) // There is no other place to report that the log cannot be written.
}
