package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Backup keeps a copy of etcd's data as they are now, in place of an earlier one. etcd is
// away for a moment meanwhile, as when its node restarts. The API server runs on.
func (c *Cluster) Backup(ctx context.Context) error {
	c.stopEtcd()
	kept := c.backupDir()
	err := errors.Join(os.RemoveAll(kept), copyDir(kept, c.etcdDir()))
	return errors.Join(err, c.startEtcd(ctx))
}

// Restore goes back to the data of the last Backup, as an administrator does: it stops
// the API server, replaces etcd's data and starts both. Revisions go back too, and nobody
// tells the API server's clients.
func (c *Cluster) Restore(ctx context.Context) error {
	if _, err := os.Stat(c.backupDir()); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	c.StopAPIServer()
	c.stopEtcd()
	err := errors.Join(os.RemoveAll(c.etcdDir()), copyDir(c.etcdDir(), c.backupDir()))
	if err = errors.Join(err, c.startEtcd(ctx)); err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}

func (c *Cluster) etcdDir() string   { return filepath.Join(c.cfg.Dir, "etcd") }
func (c *Cluster) backupDir() string { return filepath.Join(c.cfg.Dir, "etcd-backup") }

func copyDir(to, from string) error { return os.CopyFS(to, os.DirFS(from)) }

func (c *Cluster) stopEtcd() {
	if p := c.process(etcd); p != nil {
		p.stop(15 * time.Second)
	}
}

func (c *Cluster) startEtcd(ctx context.Context) error {
	if err := c.launch(etcd, c.etcdArgs()); err != nil {
		return err
	}
	return c.waitReady(ctx, etcd, c.etcdReady)
}
