package health

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// maxPEM is how long a file of a certificate or key may be, in bytes. A chain has some 10 KB.
const maxPEM = 1 << 20

// errNoCertificate says that no pair of files could be used so far.
var errNoCertificate = errors.New("no certificate for TLS yet")

// Files are paths of a certificate, with those that it is signed by, and of its key. A server without has no TLS.
type Files struct{ Certificate, Key string }

// Certificate is what a Server proves its name by, from two files in PEM. The server never serves without one. Files
// that cannot be used, or do not belong together, leave the certificate from before in force. It is safe for concurrent
// use.
type Certificate struct {
	name    string
	files   Files
	log     *slog.Logger
	current atomic.Pointer[tls.Certificate]
	first   chan struct{} // closed once there is a certificate

	mu    sync.Mutex
	texts [2][]byte
	err   error
}

// NewCertificate makes a certificate for the server of that name, and loads it. Files that cannot be used are no error:
// they may come later.
func NewCertificate(name string, files Files, log *slog.Logger) *Certificate {
	c := &Certificate{name: name, files: files, log: log, first: make(chan struct{})}
	c.Load()
	return c
}

// Load reads both files, and puts in force what they have. Of several equal errors in a row the log has the first. An
// error before the first certificate is the server's to log.
func (c *Certificate) Load() {
	c.mu.Lock()
	defer c.mu.Unlock()
	texts, next, err := c.read()
	if err != nil {
		before := c.err
		if c.err, c.texts = err, texts; c.current.Load() != nil && (before == nil || before.Error() != err.Error()) {
			c.log.Warn("cannot use a renewed certificate; the one from before stays in force", "server", c.name, "expires",
				c.current.Load().Leaf.NotAfter, "err", err)
		}
		return
	}
	if c.err == nil && bytes.Equal(texts[0], c.texts[0]) && bytes.Equal(texts[1], c.texts[1]) {
		return
	}
	c.err, c.texts = nil, texts
	log := c.log.With("server", c.name, "file", c.files.Certificate, "expires", next.Leaf.NotAfter)
	if time.Now().After(next.Leaf.NotAfter) {
		log.Warn("the certificate has expired; clients that check it refuse the server")
	} else {
		log.Info("the server has a certificate")
	}
	if c.current.Swap(next) == nil {
		close(c.first)
	}
}

func (c *Certificate) read() (texts [2][]byte, next *tls.Certificate, err error) {
	for i, file := range []string{c.files.Certificate, c.files.Key} {
		if texts[i], err = readPEM(file); err != nil {
			return texts, nil, err
		}
	}
	pair, err := tls.X509KeyPair(texts[0], texts[1])
	if err != nil {
		return texts, nil, fmt.Errorf("certificate %s, key %s: %w", c.files.Certificate, c.files.Key, err)
	}
	return texts, &pair, nil
}

// readPEM reads a file of at most maxPEM bytes.
func readPEM(file string) ([]byte, error) {
	// To open a pipe would wait for its other end.
	if info, err := os.Stat(file); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxPEM+1))
	if err == nil && len(text) > maxPEM {
		err = fmt.Errorf("%s: more than %d bytes", file, maxPEM)
	}
	return text, err
}

// missing is why there is no certificate; nil if there is one.
func (c *Certificate) missing() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current.Load() != nil {
		return nil
	}
	return c.err
}
