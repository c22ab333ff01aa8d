package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// etcdClient speaks the JSON form of etcd's KV service (api/etcdserverpb/rpc.proto of etcd 3.6).
type etcdClient struct {
	http *http.Client
	url  string
}

// message is one of its messages.
type message = map[string]any

// newEtcdClient dials inside the namespace of the control plane. It must be closed.
func (c *Cluster) newEtcdClient() *etcdClient {
	transport := &http.Transport{DialContext: c.ns.dial, MaxIdleConnsPerHost: seedConnections}
	return &etcdClient{http: &http.Client{Transport: transport}, url: localURL(c.ports.etcd)}
}

func (c *etcdClient) close() { c.http.CloseIdleConnections() }

// putNew writes a key that must not exist. Each transaction writes one key: the API
// server expects one object in each revision.
func (c *etcdClient) putNew(ctx context.Context, e entry) error {
	var result struct{ Succeeded bool }
	err := c.call(ctx, "/v3/kv/txn", message{
		"compare": []message{{"key": []byte(e.key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}},
		"success": []message{{"request_put": message{"key": []byte(e.key), "value": e.value}}},
	}, &result)
	if err == nil && !result.Succeeded {
		err = errors.New("it exists already")
	}
	return err
}

// put writes a key, whether or not it exists.
func (c *etcdClient) put(ctx context.Context, e entry) error {
	return c.call(ctx, "/v3/kv/put", message{"key": []byte(e.key), "value": e.value}, nil)
}

// remove deletes a key that must exist.
func (c *etcdClient) remove(ctx context.Context, key string) error {
	var result struct{ Deleted string } // an int64, which the JSON form writes as text
	err := c.call(ctx, "/v3/kv/deleterange", message{"key": []byte(key)}, &result)
	if err == nil && result.Deleted != "1" {
		err = errors.New("it does not exist")
	}
	return err
}

// call sends a message. If result is not nil, it fills result from the answer.
func (c *etcdClient) call(ctx context.Context, path string, m message, result any) error {
	answer, err := c.post(ctx, path, m)
	if err != nil {
		return err
	}
	defer answer.Close()
	text, err := io.ReadAll(answer)
	if err != nil {
		return fmt.Errorf("read etcd's answer: %w", err)
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(text, result); err != nil {
		return fmt.Errorf("parse etcd's answer: %w", err)
	}
	return nil
}

// post sends a message and returns the answer, which the caller closes.
func (c *etcdClient) post(ctx context.Context, path string, m message) (io.ReadCloser, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("read etcd's answer: %w", err)
	}
	return nil, fmt.Errorf("etcd answered %s: %s", answer.Status, text)
}
